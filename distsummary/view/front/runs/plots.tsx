// Pictures of many runs: parallel coordinates, a scatter of two columns, the small curve of a row's loss.

import { useEffect, useRef, useState } from "preact/hooks"
import { css, theme } from "../base/store"
import { compared, explained, said, scaleOf, short, type Listing } from "./columns"
import { percent } from "../base/format"

interface Shown { list: Listing; rows: number[]; chosen: Set<string>; open: (path: string) => void }
type Spot = { x: number; y: number; row: number }

const SHARES = 6 // settings whose share of the variance is given
const SIDE = 64, TOP = 34, BOTTOM = 24, NEAR = 12 // pixels

// Draws on a canvas as wide as its place; `draw` returns where runs are, so that the pointer finds the nearest.
function Canvas({ label, height, draw, describe, open, deps }: { label: string; height: number; draw: (pen: CanvasRenderingContext2D, width: number) => Spot[]; describe: (row: number) => string; open: (row: number) => void; deps: unknown[] }) {
  const place = useRef<HTMLCanvasElement>(null)
  const spots = useRef<Spot[]>([])
  const [width, setWidth] = useState(0)
  const [near, setNear] = useState<Spot | null>(null)
  useEffect(() => {
    const around = place.current!.parentElement!
    const resized = new ResizeObserver(() => setWidth(around.clientWidth))
    resized.observe(around)
    return () => resized.disconnect()
  }, [])
  useEffect(() => {
    const canvas = place.current!, ratio = devicePixelRatio || 1
    if (!width) return
    canvas.width = width * ratio
    canvas.height = height * ratio
    const pen = canvas.getContext("2d")!
    pen.scale(ratio, ratio)
    pen.font = `11px ${css("--font")}`
    spots.current = draw(pen, width)
  }, [width, height, theme.value, ...deps])
  const find = (event: MouseEvent): Spot | null => {
    const box = place.current!.getBoundingClientRect()
    const far = ({ x, y }: Spot): number => Math.hypot(x - event.clientX + box.left, y - event.clientY + box.top)
    const best = spots.current.reduce<Spot | null>((least, one) => (least && far(least) <= far(one) ? least : one), null)
    return best && far(best) < NEAR ? best : null
  }
  return (
    <div class="picture">
      <canvas ref={place} role="img" aria-label={label} style={{ height: `${height}px` }} onMouseMove={(event) => setNear(find(event))} onMouseLeave={() => setNear(null)} onClick={(event) => { const spot = find(event); if (spot) open(spot.row) }} />
      {near && <div class="tip" style={{ left: `${Math.min(near.x + 12, Math.max(0, width - 240))}px`, top: `${near.y + 8}px` }}>{describe(near.row)}</div>}
    </div>
  )
}

const pathOf = (list: Listing, row: number): string => list.columns.path[row] as string
const describe = (list: Listing, names: string[]) => (row: number): string => `${list.columns.name[row]}: ${names.map((name) => `${short(name)} ${said(name, list.columns[name][row])}`).join(", ")}`
const cutTo = (pen: CanvasRenderingContext2D, text: string, room: number): string => {
  let shown = text
  while (shown.length > 3 && pen.measureText(shown).width > room) shown = `…${shown.slice(2)}`
  return shown
}

export function Parallel({ list, rows, chosen, open, names, best }: Shown & { names: string[]; best: string | null }) {
  const axes = names.flatMap((name) => { const scale = scaleOf(list.columns[name], rows); return scale ? [{ name, scale }] : [] })
  if (axes.length < 2) return <p class="quiet">Parallel coordinates need two columns in which the runs differ.</p>
  const height = 190
  // The best tenth shows where good runs come from.
  const isDown = best != null && list.better[best] === "max"
  const order = best == null || rows.length < 20 ? [] : [...rows].sort((a, b) => compared(list.columns[best][a], list.columns[best][b], isDown))
  const top = new Set(order.slice(0, Math.ceil(rows.length / 10)))
  const draw = (pen: CanvasRenderingContext2D, width: number): Spot[] => {
    const side = width < 500 ? 34 : SIDE
    const xs = axes.map((_, at) => side + (at * (width - 2 * side)) / (axes.length - 1)), high = height - TOP - BOTTOM
    const spots: Spot[] = []
    const line = (row: number, color: string, thick: number): void => {
      pen.strokeStyle = css(color)
      pen.lineWidth = thick
      pen.beginPath()
      let isDown = false
      axes.forEach(({ name, scale }, at) => {
        const part = scale.at(list.columns[name][row])
        if (part == null) { isDown = false; return }
        const y = TOP + (1 - part) * high
        if (isDown) pen.lineTo(xs[at], y)
        else pen.moveTo(xs[at], y)
        isDown = true
        spots.push({ x: xs[at], y, row })
      })
      pen.stroke()
    }
    const others = rows.filter((row) => !chosen.has(pathOf(list, row)))
    pen.globalAlpha = rows.length > 400 ? 0.12 : rows.length > 60 ? 0.3 : 0.75
    for (const row of others) if (!top.has(row)) line(row, "--grey-line", 1)
    pen.globalAlpha = 0.6
    for (const row of others) if (top.has(row)) line(row, "--blue", 1.2)
    pen.globalAlpha = 1
    for (const row of rows) if (chosen.has(pathOf(list, row))) line(row, "--blue", 2.2)
    pen.lineWidth = 1
    axes.forEach(({ name, scale }, at) => {
      pen.strokeStyle = css("--grid")
      pen.strokeRect(xs[at], TOP, 0, high)
      const room = (width - 2 * side) / (axes.length - 1) - 8
      pen.textAlign = "center"
      pen.fillStyle = css("--quiet")
      pen.fillText(cutTo(pen, name, Math.min(room, 2 * side + (at && at < axes.length - 1 ? 200 : 0))), xs[at], 12)
      pen.fillText(cutTo(pen, scale.high, room), xs[at], TOP - 6)
      pen.fillText(cutTo(pen, `${scale.low}${scale.isLog ? " (log)" : ""}`, room), xs[at], height - 8)
    })
    return spots
  }
  return <>{top.size > 0 && <p class="readout">{`Blue: the best tenth by ${best!}${chosen.size ? ", and what is selected" : ""}.`}</p>}<Canvas label={`parallel coordinates of ${axes.length} columns of ${rows.length} runs`} height={height} draw={draw} describe={describe(list, axes.map((one) => one.name))} open={(row) => open(pathOf(list, row))} deps={[list, rows, chosen, names.join()]} /></>
}

export function Scatter({ list, rows, chosen, open, x, y }: Shown & { x: string; y: string }) {
  const across = scaleOf(list.columns[x] ?? [], rows), up = scaleOf(list.columns[y] ?? [], rows)
  if (!across || !up) return <p class="quiet">Nothing is in one of the two columns.</p>
  const height = 260
  const draw = (pen: CanvasRenderingContext2D, width: number): Spot[] => {
    const left = 72, high = height - 16 - 34, wide = width - left - 24
    pen.strokeStyle = css("--grid")
    pen.strokeRect(left, 16, wide, high)
    pen.fillStyle = css("--quiet")
    pen.textAlign = "right"
    pen.fillText(up.high, left - 6, 22)
    pen.fillText(up.low, left - 6, 16 + high)
    pen.textAlign = "left"
    pen.fillText(across.low, left, height - 20)
    pen.fillText(cutTo(pen, `${y}${up.isLog ? " (log)" : ""}`, wide), left, 11)
    pen.textAlign = "right"
    pen.fillText(across.high, left + wide, height - 20)
    pen.textAlign = "center"
    pen.fillText(`${x}${across.isLog ? " (log)" : ""}`, left + wide / 2, height - 5)
    return [...rows].sort((a, b) => Number(chosen.has(pathOf(list, a))) - Number(chosen.has(pathOf(list, b)))).flatMap((row): Spot[] => {
      const at = across.at(list.columns[x][row]), to = up.at(list.columns[y][row])
      if (at == null || to == null) return []
      const spot = { x: left + 6 + at * (wide - 12), y: 16 + 6 + (1 - to) * (high - 12), row }
      const isChosen = chosen.has(pathOf(list, row))
      pen.fillStyle = css(isChosen ? "--blue" : "--grey-line")
      pen.globalAlpha = isChosen ? 1 : 0.6
      pen.beginPath()
      pen.arc(spot.x, spot.y, isChosen ? 5 : 3.5, 0, 7)
      pen.fill()
      pen.globalAlpha = 1
      return [spot]
    })
  }
  return <Canvas label={`${y} over ${x} of ${rows.length} runs`} height={height} draw={draw} describe={describe(list, [x, y])} open={(row) => open(pathOf(list, row))} deps={[list, rows, chosen, x, y]} />
}

// Which settings account for how much of a metric's variance over the runs.
export function Explained({ list, rows, metric }: { list: Listing; rows: number[]; metric: string }) {
  const found = explained(list, rows, metric).slice(0, SHARES)
  if (!found.length) return null
  return <p class="readout" id="explained">{`${metric} varies with `}{found.map(([name, share], at) => <span key={name}>{at ? ", " : ""}<b>{short(name)}</b>{share >= 0.01 ? ` ${percent(share)}` : " under 1 %"}</span>)}{" (share of its variance over these runs)"}</p>
}

export function Spark({ values }: { values: (number | string | null)[] }) {
  const finite = values.filter((one): one is number => typeof one === "number")
  if (finite.length < 2) return null
  const low = Math.min(...finite), high = Math.max(...finite), width = 84, height = 20
  const points = values.map((value, at) => (typeof value === "number" ? `${((at * width) / (values.length - 1)).toFixed(1)},${(1 + (1 - (high > low ? (value - low) / (high - low) : 0.5)) * (height - 2)).toFixed(1)}` : null))
  const parts = points.reduce<string[][]>((found, point) => { if (point) found.at(-1)!.push(point); else found.push([]); return found }, [[]])
  return <svg class="spark" width={width} height={height} aria-hidden="true">{parts.filter((one) => one.length).map((one) => <polyline key={one[0]} points={one.join(" ")} />)}</svg>
}
