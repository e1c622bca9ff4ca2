// The bill of a run as a bar: where its wall time went.

import { counted, lasting, percent } from "../base/format"
import { culprit, data } from "../base/store"
import type { Bill as BillData } from "../base/types"

const LEAST = 0.005 // of the wall time: less is no part of the bar's legend

// A colour means one thing on all pages: green kept training, vermilion what holds up, red what is broken.
export function colorOf({ part, rank, cause }: BillData["parts"][number], blamed: number | null): string {
  if (/hang|lost|rollback/.test(part)) return "--bad"
  if (/training/.test(part)) return "--good"
  if (rank != null) return cause && rank === blamed ? "--vermilion" : "--vermilion-pale"
  if (/data/.test(part)) return "--orange-pale"
  if (/evaluation/.test(part)) return "--grey-1"
  if (/checkpoint/.test(part)) return "--grey-2"
  if (/recording/.test(part)) return "--grey-3"
  return "--grey-4"
}

export const nameOf = ({ part, rank, cause }: BillData["parts"][number]): string =>
  `${part}${rank != null && !part.includes(`rank ${rank}`) ? ` ${rank}` : ""}${cause ? `, ${cause}` : ""}`

export function Bill() {
  const bill = data.value.cost
  if (!bill || !(bill.wall_s > 0)) return null
  const parts = bill.parts.filter((one) => one.seconds > 0)
  const shown = parts.filter((one) => one.seconds >= LEAST * bill.wall_s)
  return (
    <section class="card bill" aria-label="where the time went">
      <h3>{`where ${lasting(bill.wall_s)} went: goodput `}<b>{percent(bill.goodput)}</b></h3>
      <div class="bar" role="img" aria-label={shown.map((one) => `${nameOf(one)} ${percent(one.seconds / bill.wall_s)}`).join(", ")}>
        {parts.map((one, at) => <i key={at} title={`${nameOf(one)}: ${lasting(one.seconds)}`} style={{ flexGrow: one.seconds, background: `var(${colorOf(one, culprit.value)})` }} />)}
      </div>
      <p class="legend">{shown.map((one, at) => <span key={at}><i class="box" style={{ background: `var(${colorOf(one, culprit.value)})` }} />{`${nameOf(one)} ${percent(one.seconds / bill.wall_s)}`}</span>)}
        {parts.length > shown.length && <span>{counted(parts.length - shown.length, "smaller part")}</span>}</p>
    </section>
  )
}
