// The bill of a run as a bar: where its wall time went.

import { counted, lasting, percent } from "../base/format"
import { culprit, data } from "../base/store"
import type { Bill as BillData } from "../base/types"

const ALIKE = 0.9 // of a part: what the run is shorter without it, if no other rank is slow
const LEAST = 0.005 // of the wall time: less is no part of the bar's legend

type Part = BillData["parts"][number]

// A colour means one thing on all pages: green kept training, vermilion what holds up, red what is broken.
const LOOKS: Record<string, [string, string]> = {
  training: ["--good", "kept training"], waiting: ["--vermilion-pale", "waiting for"], data: ["--orange-pale", "waiting for data"],
  hang: ["--bad", "hang of"], rollback: ["--bad", "steps made again"], nan: ["--bad", "trained on NaN"], unsaved: ["--bad", "after the newest checkpoint"], evaluation: ["--grey-1", "evaluation"],
  checkpoint: ["--grey-2", "checkpoints"], recording: ["--grey-3", "recording"], compile: ["--sky", "compilation, first steps"], start: ["--grey-4", "start"],
  pause: ["--empty", "between attempts"], end: ["--grey-4", "after the last step"], unmeasured: ["--empty", "not measured"],
}

export const colorOf = ({ part, rank, cause }: Part, blamed: number | null): string =>
  part === "waiting" && cause && rank != null && rank === blamed ? "--vermilion" : (LOOKS[part]?.[0] ?? "--grey-4")

export function nameOf({ part, rank, cause }: Part): string {
  const words = LOOKS[part]?.[1] ?? part
  const who = part === "waiting" || part === "hang" ? (rank == null ? " other ranks" : ` rank ${rank}`) : rank == null ? "" : `, rank ${rank}`
  return `${words}${who}${cause && cause !== part ? `, ${cause}` : part === "waiting" && rank != null && !cause ? ", unexplained" : ""}`
}

// What the run would have been without a rank's fault, the largest first.
function WhatIf({ bill }: { bill: BillData }) {
  const [first] = [...(bill.what_if ?? [])].sort((a, b) => b.seconds - a.seconds)
  if (!first || first.seconds < LEAST * bill.wall_s) return null
  const part = bill.parts.find((one) => one.rank === first.rank && one.cause === first.cause)
  if (part && first.seconds >= ALIKE * part.seconds) return null // it says what the part does
  return <p class="quiet what-if">{`Without rank ${first.rank}'s ${first.cause} the run takes ${lasting(first.seconds)} less.`}</p>
}

export function Bill() {
  const bill = data.value.cost
  if (!bill || !(bill.wall_s > 0)) return null
  const parts = bill.parts.filter((one) => one.seconds > 0)
  const shown = parts.filter((one) => one.seconds >= LEAST * bill.wall_s)
  return (
    <section class="card bill" aria-label="where the time went">
      <h2>{`where ${lasting(bill.wall_s)} went${bill.goodput == null ? "" : ": goodput "}`}{bill.goodput != null && <b>{percent(bill.goodput)}</b>}</h2>
      <div class="bar" role="img" aria-label={shown.map((one) => `${nameOf(one)} ${percent(one.seconds / bill.wall_s)}`).join(", ")}>
        {parts.map((one, at) => <i key={at} title={`${nameOf(one)}: ${lasting(one.seconds)}`} style={{ flexGrow: one.seconds, background: `var(${colorOf(one, culprit.value)})` }} />)}
      </div>
      <p class="legend">{shown.map((one, at) => <span key={at}><i class="box" style={{ background: `var(${colorOf(one, culprit.value)})` }} />{`${nameOf(one)} ${percent(one.seconds / bill.wall_s)}`}</span>)}
        {parts.length > shown.length && <span>{counted(parts.length - shown.length, "smaller part")}</span>}</p>
      <WhatIf bill={bill} />
    </section>
  )
}
