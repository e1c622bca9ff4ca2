// The anatomy of a step: one bar a rank, its phases in colour, and the rank that stands out in numbers.

import { counted, milliseconds, whole } from "../base/format"
import { useEffect, useState } from "preact/hooks"
import { chosenRank, put } from "../base/hash"
import { askStep, isServed } from "../base/source"
import { culprit, said } from "../base/store"
import { nearest } from "../charts/series"
import type { Anatomy } from "../base/types"

const ROWS = 12 // bars at first

// What waits is pale, what works has a colour; the same on all pages.
export const PHASE_COLORS: Record<string, string> = {
  data: "--orange-pale", forward: "--blue", backward: "--green", optimizer: "--purple", wait: "--grey-4", own: "--blue", rest: "--grey-2",
  recording: "--grey-3", checkpoint: "--sky", evaluation: "--grey-1", python: "--yellow",
}
const ORDER = ["data", "forward", "backward", "optimizer", "python", "rest", "own", "evaluation", "checkpoint", "recording", "wait"]
const NAMES: Record<string, string> = { wait: "waiting for others", own: "own work", rest: "other", python: "garbage collector" }

const median = (values: number[]): number => {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted.length ? (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2 : 0
}

// A served page asks for a step that it does not hold.
export function Steps({ anatomy: held, step }: { anatomy: Anatomy; step: number }) {
  const [asked, setAsked] = useState<{ step: number; anatomy: Anatomy } | null>(null)
  useEffect(() => {
    if (!isServed || held.steps[nearest(held.steps, step)] === step) return
    askStep(step, chosenRank.value).then((anatomy) => anatomy && setAsked({ step, anatomy }), (error: Error) => { said.value = error.message })
  }, [held, step])
  const anatomy = asked?.step === step ? asked.anatomy : held
  const at = nearest(anatomy.steps, step)
  const count = anatomy.ranks.length
  const phases = ORDER.filter((name) => anatomy.phases[name]?.subarray(at * count, (at + 1) * count).some((value) => value > 0))
  const of = (phase: string, place: number) => anatomy.phases[phase][at * count + place]
  const own = Array.from(anatomy.ranks, (_, place) => phases.filter((one) => one !== "wait").reduce((sum, one) => sum + of(one, place), 0))
  const total = own.map((value, place) => value + (anatomy.phases.wait ? of("wait", place) : 0))
  const longest = Math.max(...total, 1e-9)
  const wanted = chosenRank.value ?? culprit.value
  const places = Array.from(anatomy.ranks, (_, place) => place).sort((a, b) => Number(anatomy.ranks[b] === wanted) - Number(anatomy.ranks[a] === wanted) || own[b] - own[a])
  const shown = places.slice(0, ROWS)
  const first = shown[0]
  const rank = anatomy.ranks[first]
  const go = (by: number) => put({ step: held.steps[Math.max(0, Math.min(held.steps.length - 1, nearest(held.steps, step) + by))] })
  const rows = phases.map((phase) => {
    const peers = Array.from(anatomy.ranks, (_, place) => of(phase, place)).filter((_, place) => place !== first)
    return { phase, mine: of(phase, first), others: median(peers) }
  })
  return (
    <>
      <figure class="card anatomy">
        <figcaption><b class="tag">{`step ${whole(anatomy.steps[at])}`}</b><span class="quiet">{`${milliseconds(longest)}; where each rank spent it${anatomy.steps[at] === step ? "" : `; the measured step nearest to ${whole(step)}`}`}</span>
          <span class="end"><button aria-label="the measured step before" onClick={() => go(-1)}>‹</button><button aria-label="the measured step after" onClick={() => go(1)}>›</button></span></figcaption>
        {shown.map((place) => (
          <div key={place} class="bar-row" onClick={() => put({ rank: anatomy.ranks[place], step: anatomy.steps[at] })}>
            <button aria-pressed={place === first} class={anatomy.ranks[place] === culprit.value ? "culprit" : ""}>{`rank ${anatomy.ranks[place]}`}</button>
            <span class="track" role="img" aria-label={phases.map((one) => `${NAMES[one] ?? one} ${milliseconds(of(one, place))}`).join(", ")}>{phases.map((phase) => {
              const part = of(phase, place) / longest
              return part > 0 ? <i key={phase} style={{ width: `${100 * part}%`, background: `var(${PHASE_COLORS[phase]})` }} class={phase}><span>{milliseconds(of(phase, place)).replace(" ms", "")}</span></i> : null
            })}</span>
          </div>
        ))}
        <p class="legend">{phases.map((phase) => <span key={phase}><i class="box" style={{ background: `var(${PHASE_COLORS[phase]})` }} />{NAMES[phase] ?? phase}</span>)}
          {count > ROWS && <span>{`the ${ROWS} that worked longest of ${counted(count, "rank")}`}</span>}<span>times in ms</span></p>
      </figure>
      <figure class="card"><figcaption><b class="tag">{`rank ${rank}`}</b><span class="quiet">{`at step ${whole(anatomy.steps[at])}, next to the other ranks`}</span></figcaption>
        <div class="phases" tabIndex={0}><table><thead><tr>{["phase", `rank ${rank}`, count > 2 ? "median of the others" : "the other rank", "difference"].map((name, column) => <th key={name} scope="col" class={column ? "number" : ""}>{name}</th>)}</tr></thead>
          <tbody>{rows.map(({ phase, mine, others }) => {
            const more = mine - others
            const isMuch = phase !== "wait" && more > 0.1 * longest
            return <tr key={phase}><td>{NAMES[phase] ?? phase}</td><td class="number">{milliseconds(mine)}</td><td class="number">{milliseconds(others)}</td>
              <td class={`number ${isMuch ? "slow" : ""}`}>{`${more > 0 ? "+" : more < 0 ? "−" : ""}${milliseconds(Math.abs(more))}`}</td></tr>
          })}</tbody></table></div></figure>
    </>
  )
}
