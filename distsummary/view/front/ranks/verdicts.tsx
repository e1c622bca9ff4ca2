// The findings as a table, the heaviest first: which rank, why, when, what it cost.

import { lasting, whole } from "../base/format"
import { go, put } from "../base/hash"
import { data } from "../base/store"
import { stepsSaid } from "../answer/sentence"
import type { Verdict } from "../base/types"

const ROWS = 12

const ofRanks = (one: Verdict) => ((one.ranks?.length ?? 0) > 1 ? `ranks ${one.ranks!.slice(0, 8).join(", ")}${one.ranks!.length > 8 ? " ..." : ""}` : `rank ${one.rank}`)

export function Verdicts() {
  const found = data.value.overview.verdicts
  if (!found.length) return null
  const show = (one: Verdict) => {
    const map = data.value.maps.find((map) => map.tag.endsWith(`phase/${one.cause}/cpu_ms`))
    put({ step: one.since_step, rank: one.rank, map: map?.tag ?? null })
    if (one.cause === "nan") go("metrics")
  }
  return (
    <section class="card"><div class="scroll" tabIndex={0}><table class="verdicts">
      <thead><tr>{["rank", "cause", "steps", "cost", "evidence"].map((name) => <th key={name} scope="col" class={name === "cost" ? "number" : ""}>{name}</th>)}</tr></thead>
      <tbody>{found.slice(0, ROWS).map((one, at) => <tr key={at} class="choose" onClick={() => show(one)}>
        <td><button class="link">{ofRanks(one)}</button></td><td><b class={one.level === "error" ? "bad" : "slow"}>{one.cause}</b></td><td>{stepsSaid(one)}</td>
        <td class="number">{one.lost_s >= 0.05 ? lasting(one.lost_s) : "-"}</td><td><span class="evidence" title={one.evidence}>{one.evidence}</span></td></tr>)}</tbody></table></div>
      {found.length > ROWS && <p class="quiet">{`and ${whole(found.length - ROWS)} more: distsummary why`}</p>}
    </section>
  )
}
