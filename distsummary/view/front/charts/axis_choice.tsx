// What the axis of all charts shows, and the way back from a zoom.

import { put, putZoom, zoom } from "../base/hash"
import { axis } from "../base/store"
import { whole } from "../base/format"

const WORDS: Record<string, string> = { step: "step", relative: "time", wall: "time of day", epoch: "epoch" }

export function AxisChoice() {
  const { kind, kinds } = axis.value
  const range = zoom.value
  return (
    <span class="axis-choice" role="group" aria-label="axis of all charts">
      {range && <button class="link" onClick={() => putZoom(null)}>{`steps ${whole(range[0])} to ${whole(range[1])} ✕`}</button>}
      {kinds.length > 1 && kinds.map((one) => <button key={one} class="choice" aria-pressed={one === kind} onClick={() => put({ x: one })}>{WORDS[one]}</button>)}
    </span>
  )
}
