// Ranks by steps as a picture whose scale is fixed, so that a healthy run is grey.

import { effect } from "@preact/signals"
import { useEffect, useRef, useState } from "preact/hooks"
import { counted, tickDistance, whole, withUnit } from "../base/format"
import { putZoom, zoom } from "../base/hash"
import { axis, css, culprit, data, hovered, theme } from "../base/store"
import type { RankMap } from "../base/types"
import { spans } from "./marks"

const SCALE = 50 // percent at which a colour is full
const NOTHING = -32768
const LEFT = 76, RIGHT = 10, BOTTOM = 22

interface Cell { row: number; column: number }

export function columnAt(map: { columns: number; first_steps: ArrayLike<number> }, step: number): number {
  let low = 0, high = map.columns - 1
  while (low < high) {
    const middle = (low + high + 1) >> 1
    if (map.first_steps[middle] <= step) low = middle
    else high = middle - 1
  }
  return low
}

export const rowLabel = (map: RankMap, row: number): string => (row < map.ranks.length ? `rank ${map.ranks[row]}` : counted(map.others.length, "other"))

const signed = (percent: number) => `${percent > 0 ? "+" : ""}${whole(percent)} %`

// What a cell says: the median of its steps, the step that is farthest from it, in percent and in the tag's unit.
export function cellSaid(map: RankMap, { row, column }: Cell): string {
  const at = row * map.columns + column
  const first = map.first_steps[column]
  const last = column + 1 < map.columns ? map.first_steps[column + 1] - 1 : map.last_step
  const where = `${rowLabel(map, row)}, ${first === last ? `step ${whole(first)}` : `steps ${whole(first)} to ${whole(last)}`}`
  const bad = map.bad?.[at] ? "; NaN or infinite" : ""
  if (map.percent[at] === NOTHING) return `${where}: no finite value${bad}`
  const value = map.is_of_step ? "" : `, ${withUnit(map.middle[column] * (1 + map.percent[at] / 100), map.unit, 3)}`
  const who = row >= map.ranks.length && map.far_rank ? ` (rank ${map.far_rank[column]})` : ""
  const far = first === last || map.far[at] === map.percent[at] ? "" : `; at most ${signed(map.far[at])} at step ${whole(first + map.far_steps[at])}${who}`
  return `${where}: ${signed(map.percent[at])}${map.is_of_step ? " of a step" : ""}${value} (median of the ranks ${withUnit(map.middle[column], map.unit, 3)})${far}${bad}`
}

// `most`: rows that are drawn at most.
export function Heat({ map, most = Infinity, rowHeight = 20, onChoose }: { map: RankMap; most?: number; rowHeight?: number; onChoose?: (step: number, rank: number | null) => void }) {
  const place = useRef<HTMLCanvasElement>(null)
  const [width, setWidth] = useState(0)
  const [cell, point] = useState<Cell | null>(null)
  const rows = Math.min(map.rows, most)
  const height = rows * rowHeight + BOTTOM
  const [from, to] = zoom.value ?? [map.first_steps[0], map.last_step + 1]
  const along = axis.value, colours = theme.value
  const toX = (step: number) => LEFT + ((along.to(step) - along.to(from)) / (along.to(to) - along.to(from) || 1)) * (width - LEFT - RIGHT)
  const toStep = (x: number) => along.back(along.to(from) + ((x - LEFT) / (width - LEFT - RIGHT)) * (along.to(to) - along.to(from)))
  useEffect(() => {
    const element = place.current!
    const resized = new ResizeObserver(() => setWidth(element.clientWidth))
    resized.observe(element)
    return () => resized.disconnect()
  }, [])
  useEffect(() => {
    if (!width) return
    const canvas = place.current! // which may be gone when the last change comes
    const end = effect(() => draw(canvas, { map, rows, rowHeight, width, height, toX, from, to, step: hovered.value, cell }))
    return end
  }, [map, rows, rowHeight, width, from, to, along, colours, cell])
  const at = (event: { offsetX: number; offsetY: number }): Cell | null => {
    const row = Math.floor(event.offsetY / rowHeight)
    if (event.offsetX < LEFT || event.offsetX > width - RIGHT || row < 0 || row >= rows) return null
    return { row, column: columnAt(map, toStep(event.offsetX)) }
  }
  const move = (next: Cell | null) => {
    point(next)
    hovered.value = next ? map.first_steps[next.column] : null
  }
  const choose = (one: Cell | null) => one && onChoose?.(map.first_steps[one.column] + map.far_steps[one.row * map.columns + one.column] * (Math.abs(map.far[one.row * map.columns + one.column]) > SCALE ? 1 : 0), one.row < map.ranks.length ? map.ranks[one.row] : null)
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "Enter") return choose(cell)
    if (event.key === "Escape") return putZoom(null)
    const by = ({ ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] } as Record<string, [number, number]>)[event.key]
    if (!by) return
    event.preventDefault()
    const { row, column } = cell ?? { row: -by[0], column: columnAt(map, from) - by[1] }
    move({ row: Math.max(0, Math.min(rows - 1, row + by[0])), column: Math.max(0, Math.min(map.columns - 1, column + by[1])) })
  }
  return (
    <div class="heat">
      <canvas ref={place} role="img" tabIndex={0} style={{ height: `${height}px` }} aria-label={`${map.title}: ranks by steps; arrow keys go through the cells${onChoose ? ", Enter opens the step" : ""}`}
        onPointerMove={(event) => move(at(event))} onPointerLeave={() => move(null)} onBlur={() => move(null)} onKeyDown={onKey} onClick={(event) => choose(at(event))} />
      <p class="readout" aria-live="polite">{cell ? cellSaid(map, cell) : "\u00a0"}</p>
    </div>
  )
}

// Whether a single step of a cell is far out while the others are not.
const isAlone = (far: number, percent: number) => percent !== NOTHING && Math.abs(far) >= 2 * SCALE && Math.abs(percent) < SCALE

interface Picture { map: RankMap; rows: number; rowHeight: number; width: number; height: number; toX: (step: number) => number; from: number; to: number; step: number | null; cell: Cell | null }

function draw(canvas: HTMLCanvasElement, { map, rows, rowHeight, width, height, toX, from, to, step, cell }: Picture): void {
  const ratio = devicePixelRatio || 1
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) })
  const context = canvas.getContext("2d")!
  context.setTransform(ratio, 0, 0, ratio, 0, 0)
  context.clearRect(0, 0, width, height)
  const [right, bottom] = [width - RIGHT, rows * rowHeight]
  const gap = rowHeight >= 8 ? 2 : 0
  const colors = { neutral: css("--neutral"), above: css("--vermilion"), below: css("--blue"), bad: css("--bad"), text: css("--text"), quiet: css("--quiet") }
  context.save()
  context.beginPath()
  context.rect(LEFT, 0, right - LEFT, bottom)
  context.clip()
  const widths = Array.from(map.first_steps.subarray(1), (one, at) => one - map.first_steps[at]).sort((a, b) => a - b)
  const usual = widths.length ? widths[widths.length >> 1] * 1.5 : Infinity // what lies farther from its start is a gap
  for (let column = columnAt(map, from); column < map.columns && map.first_steps[column] <= to; column++) {
    const next = column + 1 < map.columns ? map.first_steps[column + 1] : map.last_step + 1
    const x = Math.round(toX(map.first_steps[column]) * ratio) / ratio
    const wide = Math.max(1, Math.round(toX(Math.min(next, map.first_steps[column] + usual)) * ratio) / ratio - x)
    for (let row = 0; row < rows; row++) {
      const at = row * map.columns + column
      const percent = map.percent[at]
      const y = row * rowHeight
      if (percent !== NOTHING) {
        context.fillStyle = colors.neutral
        context.fillRect(x, y, wide, rowHeight - gap)
        const part = Math.min(1, Math.max(0, Math.abs(percent) - 2) / SCALE)
        context.globalAlpha = part
        context.fillStyle = percent > 0 ? colors.above : colors.below
        context.fillRect(x, y, wide, rowHeight - gap)
        context.globalAlpha = 1
        if (isAlone(map.far[at], percent)) {
          context.fillStyle = map.far[at] > 0 ? colors.above : colors.below
          context.fillRect(x, y + rowHeight - gap - 3, Math.max(1.5, Math.min(wide, 3)), 3)
        }
      }
      if (map.bad?.[at]) {
        context.fillStyle = colors.bad
        context.fillRect(x, y, Math.max(2, wide), rowHeight - gap)
      }
    }
  }
  const [first] = data.value.overview.verdicts
  if (first) {
    const row = map.ranks.indexOf(first.rank)
    context.strokeStyle = colors.text
    if (row >= 0 && row < rows) for (const [since, until] of spans(first)) {
      // Around whole cells.
      const x = toX(map.first_steps[columnAt(map, since)])
      const last = Number.isFinite(until) ? columnAt(map, until) + 1 : map.columns
      const end = last < map.columns ? toX(map.first_steps[last]) : right
      context.strokeRect(x + 0.5, row * rowHeight + 0.5, Math.max(3, end - x) - 1, rowHeight - gap - 1)
    }
  }
  context.setLineDash([5, 4])
  context.strokeStyle = colors.text
  for (const start of data.value.marks.attempts.slice(1)) {
    context.beginPath()
    context.moveTo(toX(start.first_step), 0)
    context.lineTo(toX(start.first_step), bottom)
    context.stroke()
  }
  context.setLineDash([])
  if (cell) {
    context.strokeStyle = css("--blue")
    context.lineWidth = 2
    const x = toX(map.first_steps[cell.column])
    const end = toX(cell.column + 1 < map.columns ? map.first_steps[cell.column + 1] : map.last_step + 1)
    context.strokeRect(x - 1, cell.row * rowHeight, Math.max(3, end - x) + 2, rowHeight - gap)
    context.lineWidth = 1
  }
  if (step != null) {
    context.fillStyle = colors.quiet
    context.fillRect(toX(step), 0, 1, bottom)
  }
  context.restore()
  context.font = `12px ${css("--font")}`
  context.textBaseline = "middle"
  context.textAlign = "right"
  const every = Math.max(1, Math.ceil(14 / rowHeight))
  for (let row = 0; row < rows; row += every) {
    const isCulprit = row < map.ranks.length && map.ranks[row] === culprit.value
    context.fillStyle = isCulprit ? css("--culprit") : colors.quiet
    context.font = `${isCulprit ? "600 " : ""}12px ${css("--font")}`
    context.fillText(rowLabel(map, row), LEFT - 8, Math.max(7, (row + 0.5) * rowHeight - gap / 2))
  }
  context.font = `11px ${css("--font")}`
  context.fillStyle = colors.quiet
  context.textAlign = "center"
  const along = axis.value
  const [low, high] = [along.to(from), along.to(to)]
  const rough = tickDistance(low, high, Math.max(2, (right - LEFT) / (along.kind === "wall" ? 130 : 70)), along.kind === "step" ? 1 : 0)
  const distance = along.kind === "step" && high - low < 2 * rough && rough > 1 ? rough / 2 : rough // one tick alone gives no scale
  for (let tick = Math.ceil(low / distance) * distance; tick <= high; tick += distance) {
    const x = LEFT + ((tick - low) / (high - low || 1)) * (right - LEFT)
    if (x <= right - 12) context.fillText(along.said(tick), Math.max(LEFT + 8, x), bottom + 12)
  }
}

export function Scale({ map, most = Infinity }: { map: RankMap; most?: number }) {
  const isMarked = map.far.some((one, at) => isAlone(one, map.percent[at]))
  return (
    <span class="scale">
      <i /> {`scale −${SCALE} % … +${SCALE} %${map.is_of_step ? " of a step's own time" : ""}, worst first${map.rows > most ? `; the first ${most} rows` : map.others.length ? `; the other ${whole(map.others.length)} share the last row` : ""}${isMarked ? "; small mark: a single step" : ""}`}
      {map.bad?.some((one) => one > 0) && <><i class="bad" /> NaN or infinite</>}
    </span>
  )
}

