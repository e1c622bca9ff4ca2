// Curves: the median and the band over the ranks, and single ranks on top. Nothing is smoothed.

import uPlot from "uplot"
import { named, parting, runColor } from "./compare.js"
import { counted, css, h, number, whole } from "./dom.js"

const HEIGHT = 230
const AT_FIRST = 4 // ranks that are drawn when the page opens; of more, the band says it
const FIRST_TAGS = 12

export function curves({ curves: all, timeline, overview, compare }) {
  const has = [...new Set(all.flatMap((curve) => curve.lines.map((line) => line.rank)))].sort((a, b) => a - b)
  const isSpread = all.some((curve) => curve.band)
  const state = {
    ranks: new Set((has.length <= AT_FIRST || !isSpread) && !compare ? has : []), runs: new Set(compare?.runs.keys() ?? []), isLog: false, filter: "", all: false,
  }
  const grid = h("div", { class: "grid" })
  const said = h("p", { class: "quiet", "aria-live": "polite" })
  const cards = all.map((curve) => card({ ...curve, beside: besideOf(compare, curve.tag) }, state, timeline.starts))

  const arrange = () => {
    const words = state.filter.toLowerCase()
    const found = cards.filter((one) => one.curve.tag.toLowerCase().includes(words))
    const shown = state.all || words ? found : found.slice(0, FIRST_TAGS)
    grid.replaceChildren(...shown.map((one) => one.element))
    more.hidden = shown.length === found.length
    more.textContent = `show the other ${whole(found.length - shown.length)} tags`
    said.textContent = `${shown.length} of ${counted(all.length, "tag")}`
      + (overview.left_out ? `; ${whole(overview.left_out)} more are not in this file: distsummary report --tag TAG` : "")
      + ". Drag to zoom in, double-click to zoom out. Nothing is smoothed; where points are left out, the lowest, highest, first and last of each column are drawn."
  }
  const redraw = () => cards.forEach((one) => one.redraw())
  const more = h("button", { onclick: () => { state.all = true; arrange() } })

  const buttons = has.map((rank) => {
    const button = h("button", { class: "chip", "aria-pressed": state.ranks.has(rank), onclick: () => put(rank) }, `${rank}`)
    button.style.setProperty("--chip", color(rank, has))
    return [rank, button]
  })
  const put = (rank, isOn = !state.ranks.has(rank)) => {
    if (isOn) state.ranks.add(rank)
    else state.ranks.delete(rank)
    for (const [one, button] of buttons) button.setAttribute("aria-pressed", state.ranks.has(one))
    redraw()
  }
  document.addEventListener("rank", ({ detail: rank }) => has.includes(rank) && put(rank, true))
  document.addEventListener("tag", ({ detail: tag }) => {
    filter.value = state.filter = tag
    arrange()
    location.hash = "curves"
  })
  document.addEventListener("theme", redraw)
  const filter = h("input", { type: "search", id: "filter", placeholder: "filter tags  ( / )", "aria-label": "filter tags",
    oninput: () => { state.filter = filter.value; arrange() } })
  const log = h("input", { type: "checkbox", id: "log", onchange: () => { state.isLog = log.checked; redraw() } })
  arrange()
  const absent = overview.ranks.length - has.length
  const runs = compare?.runs.map((run, index) => {
    const button = h("button", { class: "chip", "aria-pressed": true, onclick: () => {
      if (!state.runs.delete(index)) state.runs.add(index)
      button.setAttribute("aria-pressed", state.runs.has(index))
      redraw()
    } }, h("span", { class: "name" }, run.name))
    button.style.setProperty("--chip", `hsl(${(index * 137.5 + 212) % 360} 75% var(--light-line))`)
    return button
  })
  return [
    runs ? h("div", { class: "tools chips", role: "group", "aria-label": "runs" }, "runs: ", runs, h("span", { class: "quiet" }, "dashed: where one parts from the first")) : null,
    h("div", { class: "tools" }, filter, h("label", {}, log, " log axis"),
      h("span", { class: "chips", role: "group", "aria-label": "ranks on top" }, "ranks on top: ", buttons.map(([, button]) => button),
        absent > 0 ? h("span", { class: "quiet" }, ` ${whole(absent)} more: distsummary report --rank N`) : null)),
    said, grid, more,
  ].filter((element) => element != null)
}

// The curves of the runs that are compared, at this tag.
function besideOf(compare, tag) {
  const found = compare?.tags.find((one) => one.tag === tag)
  return found && { ...found, runs: compare.runs }
}

export function color(rank, ranks) {
  const hue = (ranks.indexOf(rank) * 137.5 + 20) % 360
  return `hsl(${hue} 70% ${css("--light-line")})`
}

function card(curve, state, starts) {
  const place = h("div", { class: "plot" })
  const note = []
  if (curve.not_finite) note.push(`${counted(curve.not_finite, "value")} NaN or infinite, first at step ${whole(curve.first_not_finite)}`)
  if (curve.unchecked) note.push(`NaN was not looked for on ${curve.unchecked} ranks`)
  const element = h("figure", {}, h("figcaption", {}, h("span", { class: "tag" }, curve.tag), curve.unit ? ` (${curve.unit})` : "",
    h("span", { class: "quiet" }, ` ${counted(curve.ranks, "rank")}, ${counted(curve.points, "point")}`),
    note.length ? h("span", { class: "alert" }, ` ${note.join("; ")}`) : null,
    curve.beside?.partings.map((one, index) => h("span", { class: "quiet" }, " ", named(curve.beside.runs[index + 1].name, index + 1, `: ${parting(one)}`)))), place)
  let plot = null
  let isSeen = false
  const draw = () => {
    plot?.destroy()
    place.replaceChildren()
    plot = drawn(curve, state, starts, place)
  }
  new IntersectionObserver(([entry]) => {
    if (entry.isIntersecting && !isSeen) { isSeen = true; draw() }
  }, { rootMargin: "300px" }).observe(element)
  new ResizeObserver(() => plot && plot.width !== place.clientWidth && place.clientWidth && plot.setSize({ width: place.clientWidth, height: HEIGHT })).observe(place)
  return { curve, element, redraw: () => isSeen && draw() }
}

function drawn(curve, state, starts, place) {
  const { isLog } = state
  const plain = (values) => Array.from(values, (value) => (Number.isFinite(value) && !(isLog && value <= 0) ? value : null))
  const tables = []
  const series = [{ label: "step", value: (_, value) => (value == null ? "-" : whole(value)) }]
  const bands = []
  const said = (_, value) => (value == null ? "-" : number(value))
  const points = { show: false }
  if (curve.band) {
    const band = curve.band
    tables.push([Array.from(band.steps), plain(band.high), plain(band.low)])
    for (const name of ["high", "low"]) {
      const places = new Map(Array.from(band.steps, (step, index) => [step, index]))
      series.push({
        label: name === "high" ? "highest" : "lowest", stroke: css("--band-line"), width: 0.5, points,
        value: (u, value, index, at) => {
          const column = at == null ? undefined : places.get(u.data[0][at])
          return value == null || column == null ? "-"
            : `${number(value)} rank ${band[`${name}_ranks`][column]}, step ${whole(band[`${name}_steps`][column])}`
        },
      })
    }
    bands.push({ series: [1, 2], fill: css("--band") })
  }
  const add = (line, label, stroke, width) => {
    tables.push([Array.from(line.steps), plain(line.values)])
    series.push({ label, stroke, width, value: said, points: { show: line.steps.length < 40, size: 4 } })
  }
  if (curve.median) add(curve.median, "median", css("--accent"), 1.6)
  if (curve.beside) {
    curve.beside.lines.forEach((line, index) => {
      const { name, ranks, source } = curve.beside.runs[index]
      if (line && state.runs.has(index)) add(line, `${name}${source < 0 ? ", merged" : ranks > 1 ? `, rank ${source}` : ""}`, runColor(index), 1.5)
    })
  } else if (curve.merged) add(curve.merged, "merged", css("--text"), 1)
  const has = curve.lines.map((line) => line.rank)
  for (const line of curve.lines) {
    if (state.ranks.has(line.rank)) add(line, `rank ${line.rank}`, color(line.rank, has), 1)
  }
  if (!tables.length) {
    place.append(h("p", { class: "quiet" }, "no rank is chosen"))
    return null
  }
  const data = uPlot.join(tables)
  const axis = { stroke: css("--quiet"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1 }, font: `11px ${css("--font")}` }
  const marks = (u) => {
    const { ctx, bbox } = u
    ctx.save()
    const line = (step, stroke) => {
      const x = Math.round(u.valToPos(step, "x", true)) + 0.5
      if (x < bbox.left || x > bbox.left + bbox.width) return
      ctx.strokeStyle = stroke
      ctx.beginPath()
      ctx.moveTo(x, bbox.top)
      ctx.lineTo(x, bbox.top + bbox.height)
      ctx.stroke()
    }
    ctx.setLineDash([4, 4])
    for (const start of starts.slice(1)) line(start.first_step, css("--quiet"))
    curve.beside?.partings.forEach((one, index) => {
      if (one?.parts_at != null && state.runs.has(index + 1)) line(one.parts_at, runColor(index + 1))
    })
    ctx.setLineDash([])
    if (curve.first_not_finite != null) line(curve.first_not_finite, css("--bad"))
    ctx.restore()
  }
  return new uPlot(
    {
      width: place.clientWidth || 500, height: HEIGHT, series, bands,
      scales: { x: { time: false }, y: { distr: isLog ? 3 : 1 } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => whole(tick)) },
        { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : number(tick, 4))) }],
      cursor: { dataIdx: nearest, points: { size: 5 } },
      legend: { live: true },
      hooks: { drawAxes: [marks] },
    },
    data, place,
  )
}

// The place nearest to the pointer at which this series has a value.
function nearest(u, index, hovered) {
  const values = u.data[index]
  if (index === 0 || values[hovered] != null) return hovered
  let left = hovered
  let right = hovered
  while (left >= 0 && values[left] == null) left--
  while (right < values.length && values[right] == null) right++
  if (left < 0) return right < values.length ? right : hovered
  if (right >= values.length) return left
  const steps = u.data[0]
  return steps[hovered] - steps[left] <= steps[right] - steps[hovered] ? left : right
}
