// The axis that all charts share: steps, seconds since the run began, the time of day, or epochs.

import { lasting, moment, number, whole } from "./format"
import type { Marks } from "./types"

export interface Axis {
  kind: string
  label: string
  kinds: string[] // those that the run's data allow
  to(step: number): number // the place on the axis
  back(place: number): number // the step at a place
  said(place: number): string
}

const LABELS: Record<string, string> = { step: "step", relative: "time since the start", wall: "time of day", epoch: "epoch" }

export function makeAxis({ times, epochs }: Marks, wanted: string): Axis {
  const kinds = ["step", ...(times && isRising(times.seconds) ? ["relative", "wall"] : []), ...(epochs && isRising(epochs.values) ? ["epoch"] : [])]
  const kind = kinds.includes(wanted) ? wanted : "step"
  if (kind === "step") return { kind, kinds, label: LABELS.step, to: (step) => step, back: (place) => place, said: (place) => whole(place) }
  const [steps, values] = kind === "epoch" ? [epochs!.steps, epochs!.values] : [times!.steps, times!.seconds]
  const start = kind === "relative" ? values[0] : 0
  // Clocks that were set back do not turn the axis round.
  let highest = -Infinity
  const places = Array.from(values, (value) => (highest = Math.max(highest, value - start)))
  return {
    kind, kinds, label: LABELS[kind],
    to: (step) => between(steps, places, step),
    back: (place) => between(places, steps, place),
    said: (place) => (kind === "wall" ? moment(place).slice(5) : kind === "relative" ? lasting(Math.max(0, place)) : number(place, 4)),
  }
}

// Whether there is an axis from the first value to a later one: none for a clock that only goes back, or one epoch.
const isRising = (values: Float64Array): boolean => values.some((value) => value > values[0])

// The line through rising points, continued beyond its ends.
export function between(xs: ArrayLike<number>, ys: ArrayLike<number>, x: number): number {
  let low = 0, high = xs.length - 1
  while (high - low > 1) {
    const middle = (low + high) >> 1
    if (xs[middle] <= x) low = middle
    else high = middle
  }
  const width = xs[high] - xs[low]
  return width > 0 ? ys[low] + ((x - xs[low]) / width) * (ys[high] - ys[low]) : ys[low]
}
