// The marks of a run behind its charts: where the verdict was, evaluations, checkpoints, restarts, the first NaN.

import { css, data } from "../base/store"
import type { Verdict } from "../base/types"

export interface Box { left: number; top: number; width: number; height: number; to: (step: number) => number }

const MOST = 60 // marks of a kind that are in sight; more would be a pattern of their own

// The times at which a verdict held: first and last step, Infinity while it lasts.
export const spans = (one: Verdict): [number, number][] =>
  (one.intervals?.length ? one.intervals : [[one.since_step, one.until_step] as [number, number | null]]).map(([since, until]) => [since, until == null || until < 0 ? Infinity : until])

export function shade(context: CanvasRenderingContext2D, { left, top, width, height, to }: Box): void {
  const [first] = data.value.overview.verdicts
  if (!first) return
  const color = first.level === "error" ? "--bad" : "--slow"
  for (const [since, until] of spans(first)) {
    const from = Math.max(left, to(since))
    const end = Math.min(left + width, Number.isFinite(until) ? to(until + 1) : left + width)
    const isLine = end - from < 3 // such as a hang at the last step
    context.fillStyle = css(isLine ? color === "--bad" ? "--bad" : "--vermilion" : `${color}-shade`)
    if (end >= left && from <= left + width) context.fillRect(isLine ? Math.min(from, left + width - 2) : from, top, isLine ? 2 : end - from, height)
  }
}

export function drawMarks(context: CanvasRenderingContext2D, box: Box, { firstBad = null, ratio = 1 }: { firstBad?: number | null; ratio?: number }): void {
  const { left, top, width, height, to } = box
  const { evaluations, checkpoints, attempts } = data.value.marks
  const inSight = (steps: ArrayLike<number>) => Array.from(steps, (step) => to(step)).filter((x) => x >= left && x <= left + width)
  context.save()
  shade(context, box)
  const vertical = (x: number, color: string, dash: number[], size = 1) => {
    context.strokeStyle = css(color)
    context.lineWidth = size * ratio
    context.setLineDash(dash.map((one) => one * ratio))
    context.beginPath()
    context.moveTo(Math.round(x) + 0.5, top)
    context.lineTo(Math.round(x) + 0.5, top + height)
    context.stroke()
  }
  const evaluated = inSight(evaluations)
  if (evaluated.length <= MOST) for (const x of evaluated) vertical(x, "--mark", [1, 4])
  for (const x of inSight(attempts.slice(1).map((one) => one.first_step))) vertical(x, "--text", [5, 4])
  if (firstBad != null) for (const x of inSight([firstBad])) vertical(x, "--bad", [], 1.5)
  context.setLineDash([])
  context.fillStyle = css("--mark")
  const saved = inSight(checkpoints)
  if (saved.length <= MOST) for (const x of saved) {
    context.beginPath()
    context.moveTo(x - 4 * ratio, top + height)
    context.lineTo(x + 4 * ratio, top + height)
    context.lineTo(x, top + height - 6 * ratio)
    context.fill()
  }
  context.restore()
}

// What the marks mean, of those that are there.
export function marksSaid(): string[] {
  const { evaluations, checkpoints, attempts } = data.value.marks
  return [
    data.value.overview.verdicts.length ? "shaded: the finding" : "",
    evaluations.length ? "dotted: evaluations" : "",
    checkpoints.length ? "triangles: checkpoints" : "",
    attempts.length > 1 ? "dashed: restarts" : "",
  ].filter(Boolean)
}
