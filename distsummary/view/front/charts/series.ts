// Which lines a chart of a tag has, and what each says: pure, without a page.

import { between, type Axis } from "../base/axis"
import { withUnit } from "../base/format"
import type { Band, Curve, Line, Numbers, RankLine } from "../base/types"

export interface Drawn extends Line { low?: Numbers; high?: Numbers; label: string; color: string; width: number; dash?: number[] }
export interface Chosen { rank: number; line: Line | null; why?: string } // `why` it is not there, or not exact

// Colours that people with any colour vision tell apart (Okabe-Ito), as variables of page.css. Vermilion is for the rank
// that holds up the run alone.
export const RANK_COLORS = ["--orange", "--purple", "--green", "--sky", "--yellow", "--grey-line"]
export const RUN_COLORS = ["--blue", "--vermilion", "--green", "--purple", "--orange", "--sky", "--yellow", "--grey-line"]

export interface GroupLine extends Line { seconds: Numbers; low?: Numbers; high?: Numbers }
export interface RunGroup { name: string; runs: number; epochs: { steps: Numbers; values: Float64Array } | null }

export const groupColor = (at: number): string => RUN_COLORS[at % RUN_COLORS.length]
export const groupSaid = ({ name, runs }: RunGroup): string => (runs > 1 ? `${name} (${runs} runs)` : name)

// The line of a run or of a group of runs, which is their mean with the lowest and the highest. It is placed by the time
// that it took itself, or by its own epochs: at the step to which the axis gives these. None on an axis of epochs if it
// has none.
export function groupLine(line: GroupLine | null, group: RunGroup, at: number, { kind, back }: Pick<Axis, "kind" | "back">): Drawn[] {
  const epochs = group.epochs
  if (!line || (kind === "epoch" && !epochs)) return []
  const places = kind === "relative" ? line.seconds : kind === "epoch" ? Array.from(line.steps, (step) => between(epochs!.steps, epochs!.values, step)) : null
  let last = -Infinity
  const steps = places ? Float64Array.from(places, (place) => (last = Math.max(last, back(place)))) : line.steps
  return [{ ...line, steps, label: groupSaid(group), color: groupColor(at), width: 1.5, dash: at < RUN_COLORS.length ? undefined : [5, 3] }]
}

export const rankColor = (rank: number, chosen: number[], culprit: number | null): string =>
  rank === culprit ? "--vermilion" : RANK_COLORS[Math.max(0, chosen.filter((one) => one !== culprit).indexOf(rank)) % RANK_COLORS.length]

// Whether the ranks recorded the same, so that one line says it all.
export function isSame(band: Band | null): boolean {
  if (!band) return true
  for (let at = 0; at < band.low.length; at++) {
    const [low, high] = [band.low[at], band.high[at]]
    if (high - low > 1e-5 * Math.max(Math.abs(high), Math.abs(low))) return false
  }
  return true
}

function isNear(one: Line, other: Line): boolean {
  const size = Math.max(...Array.from(other.values).filter(Number.isFinite).map(Math.abs), 0)
  return one.steps.length === other.steps.length && one.values.every((value, at) => Math.abs(value - other.values[at]) <= 5e-3 * size || Number.isNaN(value))
}

// The line that stands for the run, and what it is of the ranks: the merged run or, before it is merged, their median.
export function ofRun(curve: Curve): { line: Line | RankLine | null; of: string } {
  if (curve.merged) return { line: curve.merged, of: curve.across }
  const line = curve.median ?? curve.lines[0] ?? null
  return { line, of: curve.median ? "median" : curve.ranks > 1 && line && "rank" in line ? `rank ${line.rank}` : "" }
}

// The newest value of the run.
export function newest(curve: Curve): string {
  const { line } = ofRun(curve)
  return line?.values.length ? withUnit(line.values[line.values.length - 1], curve.unit) : ""
}

// The lines of a tag from the bottom to the top: the run, the median of the ranks where it differs, chosen ranks.
export function linesOf(curve: Curve, chosen: Chosen[], culprit: number | null): { lines: Drawn[]; band: Band | null } {
  const ranks = chosen.map((one) => one.rank)
  const lines: Drawn[] = []
  const { line: run, of } = ofRun(curve), middle = curve.median
  const band = isSame(curve.band) ? null : curve.band
  const isAlone = !middle || !run || isNear(run, middle)
  if (run) lines.push({ ...run, label: middle && !band && isAlone ? "all ranks" : of, color: "--blue", width: 1.8 })
  if (!isAlone) lines.push({ ...middle, label: band ? "median" : "each rank", color: "--grey-line", width: 1.2, dash: [4, 3] })
  if (curve.ranks > 1 && band) {
    for (const { rank, line } of chosen) if (line) lines.push({ ...line, label: `rank ${rank}`, color: rankColor(rank, ranks, culprit), width: 1.6 })
  }
  return { lines, band }
}

// An exponential moving average over the points of a line, without a pull of the first ones to 0.
export function smoothed(values: ArrayLike<number>, factor: number): number[] {
  let sum = 0, weight = 0
  return Array.from(values, (value) => {
    if (!Number.isFinite(value)) return value
    sum = factor * sum + (1 - factor) * value
    weight = factor * weight + (1 - factor)
    return sum / weight
  })
}

// Whether values are read better on a log axis: all above 0, and most of them far below the highest; of a loss, whose
// first values are no outliers, the highest of all.
export function suitsLog(values: number[], name = ""): boolean {
  if (values.length < 8 || values.some((value) => value <= 0)) return false
  const sorted = [...values].sort((a, b) => a - b)
  const at = (part: number) => sorted[Math.round(part * (sorted.length - 1))]
  return at(0.5) < 0.1 * at(/loss|perplexity|ppl/i.test(name) ? 1 : 0.97) && at(0.97) > 4 * at(0.03)
}

const FAR = 5 // a point is far out where the axis would have to be so many times longer than for 98 % of the points

// The range of the points without the few that are far out; null where none is.
export function withoutOutliers(shown: number[]): [number, number] | null {
  const sorted = [...shown].sort((a, b) => a - b)
  const [low, high] = [sorted[0], sorted[sorted.length - 1]]
  const least = sorted[Math.floor(sorted.length * 0.01)]
  const most = sorted[Math.ceil(sorted.length * 0.99) - 1]
  if (!(most > least) || high - low <= FAR * (most - least)) return null
  const room = (most - least) / 4
  return [Math.max(low, least - room), Math.min(high, most + room)]
}

// The place of the step nearest to `step`; -1 without any.
export function nearest(steps: ArrayLike<number>, step: number): number {
  let low = 0, high = steps.length - 1
  if (high < 0) return -1
  while (high - low > 1) {
    const middle = (low + high) >> 1
    if (steps[middle] <= step) low = middle
    else high = middle
  }
  return Math.abs(steps[high] - step) < Math.abs(steps[low] - step) ? high : low
}
