// Metrics: the tags as a tree, a search over all names, pinned charts, charts on one axis.

import { useEffect, useState } from "preact/hooks"
import { counted, whole } from "../base/format"
import { group, logKind, pins, put, putRanks, ranks, search, smoothing } from "../base/hash"
import { askTag, isServed } from "../base/source"
import { axis, culprit, data, hovered, isAlone } from "../base/store"
import type { Curve } from "../base/types"
import { AxisChoice } from "../charts/axis_choice"
import { CurveCard } from "../charts/card"
import { marksSaid } from "../charts/marks"
import { rankColor } from "../charts/series"
import { chosenTags, treeOf, type Branch } from "./tree"

const FIRST = 24 // charts that are shown at once

function Twig({ branch, depth = 0 }: { branch: Branch; depth?: number }) {
  const isChosen = group.value === (branch.prefix || "/")
  const isOpen = group.value.startsWith(branch.prefix) && branch.prefix !== ""
  return (
    <li>
      <button aria-pressed={isChosen} class={branch.isOwn ? "own" : ""} onClick={() => put({ group: isChosen ? null : branch.prefix || "/", q: null })}>{branch.name}<span>{whole(branch.tags.length)}</span></button>
      {isOpen && branch.children.length > 0 && <ul>{branch.children.map((one) => <Twig key={one.prefix} branch={one} depth={depth + 1} />)}</ul>}
    </li>
  )
}

// A tag that the page does not hold: a served page asks for it, a file names the command.
function Missing({ tag }: { tag: string }) {
  const [found, put] = useState<Curve | string | null>(null)
  useEffect(() => { askTag(tag).then(put, (error: Error) => put(error.message)) }, [tag, data.value.overview.made])
  if (found && typeof found !== "string") return <CurveCard curve={found} />
  return <figure class="card chart"><figcaption><b class="tag">{tag}</b></figcaption><p class="quiet">{found ?? "reading ..."}</p></figure>
}

function RankChoice() {
  const { overview } = data.value
  const [refused, refuse] = useState("")
  if (isAlone.value) return null
  const named = [...new Set([...ranks.value, ...overview.verdicts.map((one) => one.rank), ...(overview.ranks.length <= 8 ? overview.ranks : [])])]
  const toggle = (rank: number) => putRanks(ranks.value.includes(rank) ? ranks.value.filter((one) => one !== rank) : [...ranks.value, rank])
  const add = (text: string) => {
    const rank = Number(text)
    const isThere = text !== "" && overview.ranks.includes(rank)
    refuse(isThere || text === "" ? "" : `there is no rank ${text}; the run has ${counted(overview.ranks.length, "rank")}, ${overview.ranks[0]} to ${overview.ranks.at(-1)}`)
    if (isThere && !ranks.value.includes(rank)) toggle(rank)
    return isThere
  }
  return (
    <span class="chips" role="group" aria-label="ranks on top">ranks on top
      {named.map((rank) => {
        const isOn = ranks.value.includes(rank)
        return <button key={rank} class="chip" aria-pressed={isOn} style={isOn ? { "--chip": `var(${rankColor(rank, ranks.value, culprit.value)})` } : {}} onClick={() => toggle(rank)}>{rank}</button>
      })}
      {overview.ranks.length > named.length && <input type="number" min={0} placeholder="any rank" aria-label="put any rank on top" onChange={(event) => { if (add(event.currentTarget.value)) event.currentTarget.value = "" }} />}
      {refused && <span class="bad" role="status">{refused}</span>}
    </span>
  )
}

function Tools() {
  return (
    <div class="tools">
      <input type="search" id="filter" value={search.value} placeholder="search all tags  ( / )" aria-label="search all tags" onInput={(event) => put({ q: event.currentTarget.value })} />
      <AxisChoice />
      <label>values <select aria-label="axis of values" value={logKind.value} onChange={(event) => put({ log: event.currentTarget.value })}><option value="auto">log where it fits</option><option value="linear">linear</option><option value="log">log</option></select></label>
      <label>smoothing <input type="range" min={0} max={0.99} step={0.01} value={smoothing.value} aria-label="smoothing" onInput={(event) => put({ smooth: event.currentTarget.value })} /><output>{smoothing.value || "none"}</output></label>
      <RankChoice />
    </div>
  )
}

export function Metrics() {
  const { tags, curves } = data.value
  const [most, show] = useState(FIRST)
  const held = new Map(curves.map((one) => [one.tag, one]))
  const found = chosenTags(tags, search.value, group.value)
  const pinned = pins.value.filter((tag) => tags.includes(tag))
  const rest = found.filter((tag) => !pinned.includes(tag))
  const there = isServed ? rest : rest.filter((tag) => held.has(tag))
  const absent = isServed ? [] : rest.filter((tag) => !held.has(tag))
  const card = (tag: string) => (held.has(tag) ? <CurveCard key={tag} curve={held.get(tag)!} /> : <Missing key={tag} tag={tag} />)
  const step = hovered.value
  useEffect(() => show(FIRST), [search.value, group.value])
  return (
    <div class="metrics">
      <aside aria-label="tags by prefix"><ul>
        {treeOf(tags).map((one) => <Twig key={one.prefix} branch={one} />)}
        <li><button aria-pressed={group.value === "*"} onClick={() => put({ group: group.value === "*" ? null : "*", q: null })}>all<span>{whole(tags.length)}</span></button></li>
      </ul></aside>
      <div>
        <Tools />
        <p class="quiet" aria-live="polite">{step == null ? `${whole(found.length)} of ${counted(tags.length, "tag")}. ${["drag to zoom all charts, double-click to zoom out", ...marksSaid()].join("; ")}.`
          : `step ${whole(step)}${axis.value.kind === "step" ? "" : `, ${axis.value.said(axis.value.to(step))}`}`}
          {smoothing.value > 0 && ` Lines are smoothed, an exponential moving average with the factor ${smoothing.value}; pale lines are what was recorded.`}</p>
        {pinned.length > 0 && <><h2>Pinned</h2><div class="grid">{pinned.map(card)}</div></>}
        <div class="grid">{there.slice(0, most).map(card)}</div>
        {there.length > most && <button class="more" onClick={() => show(most + FIRST)}>{`show ${whole(Math.min(FIRST, there.length - most))} more of ${whole(there.length - most)}`}</button>}
        {absent.length > 0 && <section class="card absent"><h2>{`${counted(absent.length, "tag")} not in this file`}</h2><p class="quiet">distsummary report --tag TAG makes one that has it; distsummary serve shows all of them.</p>
          <ul>{absent.slice(0, 200).map((tag) => <li key={tag}>{tag}</li>)}</ul>{absent.length > 200 && <p class="quiet">{`and ${whole(absent.length - 200)} more`}</p>}</section>}
        {found.length === 0 && <p class="card quiet">{`No tag has “${search.value || group.value}” in its name; ${counted(tags.length, "tag")} were recorded.`}</p>}
      </div>
    </div>
  )
}
