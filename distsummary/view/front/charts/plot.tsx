// A chart of lines over the axis that all charts share: one crosshair, one zoom, the marks of the run.

import uPlot from "uplot"
import { effect } from "@preact/signals"
import { useEffect, useRef, useState } from "preact/hooks"
import { number, ticksSaid, tickDistance, withUnit } from "../base/format"
import { logKind, putZoom, smoothing, zoom } from "../base/hash"
import { axis, css, culprit, data, hovered, theme } from "../base/store"
import type { Band, RankLine } from "../base/types"
import { drawMarks } from "./marks"
import { nearest, smoothed, suitsLog, withoutOutliers, type Drawn } from "./series"

export interface PlotProps {
  name: string; unit: string; lines: Drawn[]; band?: Band | null; ranks?: RankLine[]; height: number
  firstBad?: number | null; isSmooth?: boolean; isFromZero?: boolean; onOutliers?: (text: string) => void
}

type Values = (number | null)[]

// A log axis is as high as its values; its ticks are at 1, 2 and 5, or evenly spaced below a decade.
export function logTicks(low: number, high: number, pixels: number, least: number): number[] {
  const decades = Math.log10(high / low)
  const found: number[] = []
  if (decades < 0.8) {
    const distance = tickDistance(low, high, 5)
    for (let tick = Math.ceil(low / distance); tick * distance <= high; tick++) found.push(tick * distance)
    return found
  }
  const room = pixels / decades
  const every = Math.max(1, Math.ceil(least / room))
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    if (power % every) continue
    for (const lead of room >= least * 3.4 ? [1, 2, 5] : [1]) if (lead * 10 ** power >= low && lead * 10 ** power <= high) found.push(lead * 10 ** power)
  }
  return found
}

export function Plot(props: PlotProps) {
  const place = useRef<HTMLDivElement>(null)
  const [width, setWidth] = useState(0)
  const [isSeen, see] = useState(false)
  const along = axis.value, kind = logKind.value, range = zoom.value, factor = props.isSmooth ? smoothing.value : 0, colours = theme.value
  useEffect(() => {
    const element = place.current!
    const resized = new ResizeObserver(() => setWidth(element.clientWidth))
    const shown = new IntersectionObserver((entries) => entries.some((one) => one.isIntersecting) && see(true), { rootMargin: "300px" })
    resized.observe(element)
    shown.observe(element)
    return () => { resized.disconnect(); shown.disconnect() }
  }, [])
  useEffect(() => {
    if (!isSeen || !width) return
    const { plot, end } = draw(place.current!, width, props, factor, kind)
    return () => { end(); plot.destroy() }
  }, [isSeen, width, props.lines, props.band, props.height, props.firstBad, along, kind, range?.[0], range?.[1], factor, colours])
  return <div class="plot" ref={place} style={{ minHeight: `${props.height}px` }} />
}

function draw(place: HTMLElement, width: number, { name, unit, lines, band, ranks, height, firstBad, isFromZero, onOutliers }: PlotProps, factor: number, kind: string) {
  const along = axis.value
  const range = zoom.value
  const finite = lines.flatMap((line) => Array.from(line.values).filter(Number.isFinite))
  const isLog = kind === "log" ? finite.some((value) => value > 0) : kind === "auto" && suitsLog(finite, name)
  place.classList.toggle("log", isLog)
  const plain = (values: ArrayLike<number>): Values => Array.from(values, (value) => (Number.isFinite(value) && !(isLog && value <= 0) ? value : null))
  const tables: uPlot.AlignedData[] = []
  const series: uPlot.Series[] = [{}]
  const bands: uPlot.Band[] = []
  const points = { show: false }
  if (band) {
    tables.push([Array.from(band.steps), plain(band.high), plain(band.low)])
    for (let at = 0; at < 2; at++) series.push({ stroke: css("--band-line"), width: 0.5, points })
    bands.push({ series: [1, 2], fill: css("--band") })
  }
  for (const line of lines) {
    const stroke = css(line.color)
    const smooth = factor ? plain(smoothed(line.values, factor)) : null
    const range = line.low && line.high ? [plain(line.high), plain(line.low)] : []
    tables.push([Array.from(line.steps), plain(line.values), ...(smooth ? [smooth] : []), ...range])
    if (smooth) series.push({ stroke, width: 0.6, alpha: 0.35, points })
    series.push({ stroke, width: line.width, dash: line.dash, points: { show: line.steps.length < 40, size: 4, fill: stroke, width: 0 } })
    if (range.length) bands.push({ series: [series.length, series.length + 1], fill: `color-mix(in srgb, ${stroke} 18%, transparent)` })
    for (const _ of range) series.push({ stroke, width: 0.5, alpha: 0.4, points })
  }
  const joined = tables.length ? uPlot.join(tables, tables.map((table) => table.map(() => 1))) : ([[], []] as unknown as uPlot.AlignedData)
  const places = Array.from(joined[0], along.to)
  // Two steps at the same time must not be at the same place of a rising axis.
  for (let at = 1; at < places.length; at++) if (!(places[at] > places[at - 1])) places[at] = places[at - 1] + 1e-9 * Math.max(1, Math.abs(places[at - 1]))
  const ends = data.value.overview.steps ?? [0, 1]
  const [from, to] = (range ?? [Math.min(ends[0], joined[0][0] ?? ends[0]), Math.max(ends[1], ends[0] + 1, joined[0].at(-1) ?? 0)]).map(along.to)
  const yRange: uPlot.Range.Function = (u, low, high) => {
    if (low == null || high == null) return isLog ? [1, 10] : [0, 1]
    if (isLog) return [low / 1.1, high * 1.1]
    const [first, last] = u.series[0].idxs ?? [0, places.length - 1]
    const shown = u.data.slice(1).flatMap((values) => Array.from(values).slice(first, last + 1).filter((value) => value != null)) as number[]
    const kept = withoutOutliers(shown)
    onOutliers?.(kept ? [low < kept[0] ? `down to ${number(low, 3)}` : "", high > kept[1] ? `up to ${number(high, 3)}` : ""].filter(Boolean).join(", ") : "")
    const [bottom, top] = kept ?? [low, high]
    const room = (top - bottom) * 0.08 || Math.abs(top) * 0.02 || 1
    // Times and shares have a scale of their own: without it, noise would fill the chart.
    if (unit === "%" && bottom >= 0) return [0, Math.max(100, top)]
    return [bottom >= 0 && (isFromZero || bottom - room < 0) ? 0 : bottom - room, top + room]
  }
  const font = `11px ${css("--font")}`
  const line = { stroke: css("--quiet"), font, grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false } }
  const inMs = unit === "ms"
  const saidTicks = (ticks: (number | null)[]): string[] => {
    const scale = inMs && Math.max(...ticks.map((tick) => Math.abs(tick ?? 0))) >= 1000 ? 1000 : 1
    const shown = inMs && scale === 1000 ? "s" : unit
    return ticksSaid(ticks.map((tick) => (tick == null ? null : tick / scale))).map((tick) => (tick && shown ? `${tick} ${shown}` : tick))
  }
  const plot = new uPlot({
    width, height, series, bands, padding: [8, 16, 0, 0],
    scales: { x: { time: false, range: () => [from, to] }, y: { range: yRange, ...(isLog ? { distr: 3 as const } : {}) } },
    axes: [
      { ...line, grid: { show: false }, size: 26, gap: 4, space: along.kind === "wall" ? 110 : 64, values: (_, ticks) => ticks.map((tick) => along.said(tick)) },
      { ...line, size: (_, texts) => Math.max(36, 14 + 6.2 * Math.max(0, ...(texts ?? []).map((text) => text?.length ?? 0))), gap: 4, space: 28,
        ...(isLog ? { splits: (u, _, low, high) => logTicks(low, high, u.bbox.height / devicePixelRatio, 22), filter: (_, ticks) => ticks } as Partial<uPlot.Axis> : {}),
        values: (_, ticks) => saidTicks(ticks) },
    ],
    cursor: { x: false, y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
    legend: { show: false },
    hooks: {
      drawAxes: [(u) => drawMarks(u.ctx, { ...boxOf(u), to: (step) => u.valToPos(along.to(step), "x", true) }, { firstBad, ratio: devicePixelRatio })],
      setSelect: [(u) => {
        if (u.select.width < 4) return
        putZoom([u.select.left, u.select.left + u.select.width].map((at) => along.back(u.posToVal(at, "x"))) as [number, number])
      }],
    },
  }, [places, ...joined.slice(1)] as uPlot.AlignedData, place)
  const over = plot.over
  over.tabIndex = 0
  over.setAttribute("role", "img")
  over.setAttribute("aria-label", `${name} over the steps; arrow keys go through them`)
  const cross = over.appendChild(Object.assign(document.createElement("i"), { className: "cross" }))
  const tip = over.appendChild(Object.assign(document.createElement("div"), { className: "tip" }))
  let isOver = false
  const all = [...new Set(lines.flatMap((one) => Array.from(one.steps)))].sort((a, b) => a - b)
  over.addEventListener("pointermove", (event) => {
    isOver = true
    const at = nearest(all, along.back(plot.posToVal(event.clientX - over.getBoundingClientRect().left, "x")))
    hovered.value = at < 0 ? null : all[at]
  })
  const leave = () => { isOver = false; hovered.value = null }
  over.addEventListener("pointerleave", leave)
  over.addEventListener("blur", leave)
  over.addEventListener("dblclick", () => putZoom(null))
  over.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key]
    if (event.key === "Escape") return putZoom(null)
    if (!by || !all.length) return
    event.preventDefault()
    isOver = true
    const at = hovered.value == null ? (by > 0 ? -1 : all.length) : nearest(all, hovered.value)
    hovered.value = all[Math.max(0, Math.min(all.length - 1, at + by))]
  })
  const end = effect(() => {
    const step = hovered.value
    const left = step == null ? -1 : plot.valToPos(along.to(step), "x")
    const isIn = step != null && left >= -3 && left <= over.clientWidth + 3
    cross.hidden = !isIn
    tip.hidden = !isIn || !isOver
    if (!isIn) return
    cross.style.left = `${left}px`
    if (isOver) showTip(tip, left, over.clientWidth, step!, lines, band ?? null, unit)
    if (isOver && band && ranks?.length) tip.append(bars(ranks, step!))
  })
  return { plot, end }
}

const boxOf = (u: uPlot) => ({ left: u.bbox.left, top: u.bbox.top, width: u.bbox.width, height: u.bbox.height })

// The values at the crosshair, at the pointer: each line's nearest point, and which ranks are the outermost.
function showTip(tip: HTMLElement, left: number, width: number, step: number, lines: Drawn[], band: Band | null, unit: string): void {
  const rows: [string, string, string][] = lines.map((line) => {
    const at = nearest(line.steps, step)
    return [line.color, line.label, at < 0 ? "-" : withUnit(line.values[at], unit, 5)]
  })
  if (band) {
    const at = nearest(band.steps, step)
    if (at >= 0) rows.push(["", "highest", `${withUnit(band.high[at], unit)}, rank ${band.high_ranks[at]}`], ["", "lowest", `${withUnit(band.low[at], unit)}, rank ${band.low_ranks[at]}`])
  }
  tip.replaceChildren(element("b", axis.value.kind === "step" ? `step ${axis.value.said(step)}` : `step ${number(step, 12)}, ${axis.value.said(axis.value.to(step))}`), ...rows.map(([color, label, value]) => {
    const row = element("span", "")
    const swatch = element("i", "")
    swatch.style.background = color ? `var(${color})` : "none"
    row.append(swatch, element("em", label), element("span", value))
    return row
  }))
  const isRight = left > width / 2
  tip.style.left = isRight ? "" : `${left + 12}px`
  tip.style.right = isRight ? `${width - left + 12}px` : ""
}

// The value of each rank as a bar from 0, in the order of the ranks.
function bars(ranks: RankLine[], step: number): HTMLElement {
  const values = ranks.map((line) => Math.abs(line.values[nearest(line.steps, step)] ?? 0)).map((value) => (Number.isFinite(value) ? value : 0))
  const most = Math.max(...values, Number.MIN_VALUE)
  const place = Object.assign(element("div", ""), { className: "of-ranks" })
  place.append(...values.map((value, at) => {
    const bar = element("i", "")
    bar.style.cssText = `height: ${(100 * value) / most}%; background: var(${ranks[at].rank === culprit.value ? "--vermilion" : "--blue"})`
    return bar
  }))
  return place
}

function element(name: string, text: string): HTMLElement {
  return Object.assign(document.createElement(name), { textContent: text })
}
