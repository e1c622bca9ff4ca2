// Three numbers to act on: loss, first evaluation metric, step time.

import { counted, milliseconds, number, whole, withUnit } from "../base/format"
import { data } from "../base/store"
import type { Figure } from "../base/types"

function Tile({ name, value, note, isBad = false }: { name: string; value: string; note: string; isBad?: boolean }) {
  return <div class="card tile"><dt title={name}>{name}</dt><dd class={isBad ? "bad" : ""}>{value}</dd><dd class="quiet">{note}</dd></div>
}

function figure({ tag, unit, last, step, ranks, of, bad_since: bad }: Figure, best = "") {
  const note = bad != null ? `NaN or infinite ${last == null ? "since" : "at"} step ${whole(bad)}` : best || [of && `${of} of ${counted(ranks, "rank")}`, `step ${whole(step)}`].filter(Boolean).join(", ")
  return <Tile key={tag} name={tag} value={last == null ? "NaN" : withUnit(last, unit)} note={note} isBad={last == null} />
}

export function Tiles() {
  const { loss, metric, time, wait } = data.value.answer
  const waits = wait ? data.value.maps.find((one) => one.tag === wait) : null
  const waited = waits ? Array.from(waits.middle).filter(Number.isFinite).sort((a, b) => a - b) : []
  const half = waited.length ? waited[waited.length >> 1] : 0
  return (
    <dl class="tiles">
      {loss && figure(loss)}
      {metric && metric.tag !== loss?.tag && figure(metric, metric.best != null ? `best ${number(metric.best, 4)} at step ${whole(metric.best_step!)}` : "")}
      {time && <Tile name={time.tag.endsWith("own_ms") ? "own time of a step, median" : "step time, median"} value={milliseconds(time.median)}
        note={half >= 0.05 * time.median ? `of it ${milliseconds(half)} waiting for other ranks` : `95 % below ${milliseconds(time.most)}`} />}
      {!loss && !metric && !time && <Tile name="recorded" value={whole(data.value.tags.length)} note="scalars" />}
    </dl>
  )
}
