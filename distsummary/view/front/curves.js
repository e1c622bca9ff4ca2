// Curves: the median and the band over the ranks, and single ranks and other runs on top.

import uPlot from "uplot"
import { named, parting, runColor } from "./compare.js"
import { isServed, rankCurve } from "./data.js"
import { counted, css, h, number, on, tickDistance, ticksSaid, whole } from "./dom.js"

const HEIGHT = 230
const AT_FIRST = 4 // ranks that are drawn when the page opens; of more, the band says it
const FIRST_TAGS = 12
const FAR = 5 // a point is far out where the axis would have to be so many times longer than for 98 % of the points

export function curves({ curves: all, maps, timeline, overview, compare }, kept = {}) {
  if (!all.length) return [h("p", { class: "quiet" }, "No scalar was recorded.")]
  kept.seen ??= new Set() // tags that were drawn
  kept.zoom ??= new Map() // tag -> the first and the last step that are shown, if not all
  const has = [...new Set(all.flatMap((curve) => curve.lines.map((line) => line.rank)))].sort((a, b) => a - b)
  const isSpread = all.some((curve) => curve.band)
  const state = {
    ranks: kept.ranks ?? new Set((has.length <= AT_FIRST || !isSpread) && !compare ? has : []), runs: new Set(compare?.runs.keys() ?? []), known: (kept.known ??= []), smoothing: 0, isLog: false, isLogX: false, isWhole: kept.isWhole ?? false, filter: "", all: kept.all ?? false,
  }
  const grid = h("div", { class: "grid" })
  const said = h("p", { class: "quiet", "aria-live": "polite" })
  const cards = all.map((curve) => card({ ...curve, compared: comparedOf(compare, curve.tag), others: otherRanks(curve, maps, overview.ranks, (kept.lines ??= new Map())) }, state, timeline.starts, kept))

  const arrange = () => {
    const words = state.filter.toLowerCase()
    const found = cards.filter((one) => one.curve.tag.toLowerCase().includes(words))
    const shown = state.all || words ? found : found.slice(0, FIRST_TAGS)
    grid.replaceChildren(...shown.map((one) => one.element))
    more.hidden = shown.length === found.length
    more.textContent = `show the other ${whole(found.length - shown.length)} tags`
    said.textContent = `${shown.length} of ${counted(all.length, "tag")}`
      + (overview.left_out ? `; ${whole(overview.left_out)} more are not ${isServed ? "on this page" : "in this file"}: distsummary report --tag TAG` : "")
      + `. Drag to zoom in, double-click to zoom out. ${smoothingSaid(state.smoothing)}${state.isLogX ? " Steps below 1 are not on a log axis." : ""}${state.isLog ? " Values of 0 and below are not on a log axis." : ""} Where points are left out, the lowest, highest, first and last of each column are drawn.`
  }
  const redraw = () => cards.forEach((one) => one.redraw())
  const more = h("button", { onclick: () => { state.all = kept.all = true; arrange() } })

  const chips = h("span", { class: "chips" })
  const buttons = new Map()
  const know = (rank) => {
    const button = h("button", { class: "chip", "aria-pressed": state.ranks.has(rank), onclick: () => put(rank) }, `${rank}`)
    buttons.set(rank, button)
    chips.append(button)
  }
  const paint = (rank) => { // colours in the order of choice, so that the first few differ much
    if (!state.known.includes(rank)) state.known.push(rank)
    buttons.get(rank).style.setProperty("--chip", color(rank, state.known))
  }
  new Set([...has, ...state.ranks]).forEach(know)
  state.ranks.forEach(paint)
  const put = (rank, isOn = !state.ranks.has(rank)) => {
    if (!buttons.has(rank)) know(rank)
    if (isOn) state.ranks.add(rank)
    else state.ranks.delete(rank)
    kept.ranks = state.ranks
    paint(rank)
    buttons.get(rank).setAttribute("aria-pressed", state.ranks.has(rank))
    redraw()
  }
  on("rank", ({ detail: rank }) => put(rank, true))
  const refused = h("span", { class: "alert", role: "status" })
  const any = h("input", { type: "number", min: 0, step: 1, placeholder: "any rank", "aria-label": "put any rank on top", onchange: () => {
    if (any.value === "") return
    const rank = Number(any.value)
    refused.textContent = overview.ranks.includes(rank) ? "" : `there is no rank ${any.value}; the run has ${counted(overview.ranks.length, "rank")}, ${overview.ranks[0]} to ${overview.ranks.at(-1)}`
    if (refused.textContent) return
    put(rank, true)
    any.value = ""
  } })
  on("tag", ({ detail: tag }) => {
    filter.value = state.filter = tag
    arrange()
    location.hash = "curves"
  })
  on("theme", redraw)
  const filter = h("input", { type: "search", id: "filter", placeholder: "filter tags  ( / )", "aria-label": "filter tags",
    oninput: () => { state.filter = filter.value; arrange() } })
  const log = h("input", { type: "checkbox", onchange: () => { state.isLog = log.checked; redraw() } })
  const logX = h("input", { type: "checkbox", onchange: () => { state.isLogX = logX.checked; arrange(); redraw() } })
  const far = h("input", { type: "checkbox", checked: state.isWhole, onchange: () => { state.isWhole = kept.isWhole = far.checked; redraw() } })
  const factor = h("output", {}, "none")
  const smoothing = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0, oninput: () => {
    state.smoothing = Number(smoothing.value)
    factor.textContent = state.smoothing || "none"
    arrange()
    redraw()
  } })
  arrange()
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
    h("div", { class: "tools" }, filter, h("label", {}, log, " log values"), h("label", {}, logX, " log steps"), h("label", { title: "points far out, such as a first step that compiles" }, far, " outliers"),
      h("label", { class: "chips" }, "smoothing ", smoothing, factor),
      h("span", { class: "chips", role: "group", "aria-label": "ranks on top" }, "ranks on top: ", chips, overview.ranks.length > has.length ? any : null, refused)),
    said, grid, more,
  ].filter((element) => element != null)
}

// The curves of the runs that are compared, at this tag.
function comparedOf(compare, tag) {
  const found = compare?.tags.find((one) => one.tag === tag)
  return found && { ...found, runs: compare.runs }
}

// A rank that has no line of its own in the page: from the server; in a file, the row of its heat map, whose columns
// are coarser. Gives { line, label, why } or a promise of it; `why` says what is not exact, or not there.
function otherRanks(curve, maps, ranks, lines) {
  const found = new Map()
  const map = maps.find((one) => one.tag === curve.tag && one.kind === "value")
  const read = (rank) => {
    const answer = rankCurve(curve.tag, rank)
    if (answer) return answer.then((line) => ({ line, label: `rank ${rank}` })).catch((error) => ({ why: `rank ${rank}: ${error.message}` }))
    const place = map ? map.ranks.indexOf(rank) : -1
    if (place < 0) return { why: `rank ${rank} is not in this file: distsummary report --rank ${rank}` }
    const row = Math.floor(place / map.group)
    const cells = Array.from({ length: map.columns }, (_, column) => row * map.columns + column).filter((at) => !Number.isNaN(map.values[at]))
    const line = { steps: cells.map((at) => map.first_steps[at % map.columns] + map.at_step[at]), values: cells.map((at) => map.values[at]) }
    const together = map.ranks.subarray(row * map.group, (row + 1) * map.group)
    const isOne = together.length === 1
    if (isOne && map.columns === curve.steps) return { line, label: `rank ${rank}` } // a cell for each step
    const width = Math.max(1, Math.round((map.last_step - map.first_steps[0] + 1) / map.columns))
    const what = `the highest of ${[isOne ? "" : `ranks ${together[0]} to ${together.at(-1)}`, width > 1 ? `about ${whole(width)} steps` : ""].filter(Boolean).join(" and ")}`
    return { line, label: `${isOne ? `rank ${rank}` : `ranks ${together[0]} to ${together.at(-1)}`}, as in the heat map`, why: `rank ${rank} is drawn as in the heat map, each point ${what}; all its values: distsummary report --rank ${rank}` }
  }
  return (rank) => {
    if (!found.has(rank)) {
      const key = `${rank} ${curve.tag}`
      const answer = ranks.includes(rank) ? read(rank) : {}
      const next = answer.then?.((one) => {
        found.set(rank, one)
        lines.set(key, one)
        return one
      })
      found.set(rank, next && lines.has(key) ? { ...lines.get(key), next } : (next ?? answer)) // until it comes, the line of before
    }
    return found.get(rank)
  }
}

// An exponential moving average over the points of a line, without a pull of the first ones to 0.
function smoothed(values, factor) {
  let sum = 0
  let weight = 0
  return values.map((value) => {
    if (value == null) return null
    sum = factor * sum + (1 - factor) * value
    weight = factor * weight + (1 - factor)
    return sum / weight
  })
}

const smoothingSaid = (factor) => (factor
  ? `Lines are smoothed: an exponential moving average with the factor ${factor} over the points drawn; pale lines and the band are what was recorded.`
  : "Nothing is smoothed.")

// A log axis is as high as its values; its ticks are at 1, 2 and 5, or evenly spaced below a decade.
export const logRange = (_, low, high) => (low == null ? [1, 10] : [low / 1.1, high * 1.1])
function logTicks(u, axis, low, high) {
  const decades = Math.log10(high / low)
  const found = []
  if (decades < 0.8) {
    const distance = tickDistance(low, high, 5)
    for (let tick = Math.ceil(low / distance); tick * distance <= high; tick++) found.push(tick * distance)
    return found
  }
  const room = (axis ? u.bbox.height : u.bbox.width) / (window.devicePixelRatio || 1) / decades // pixels of a decade
  const least = axis ? 22 : 62
  const every = Math.max(1, Math.ceil(least / room))
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    if (power % every) continue
    for (const lead of room >= least * 3.4 ? [1, 2, 5] : [1]) if (lead * 10 ** power >= low && lead * 10 ** power <= high) found.push(lead * 10 ** power)
  }
  return found
}
const asTheyAre = (_, splits) => splits
export const logAxis = { splits: logTicks, filter: asTheyAre }

export function color(rank, ranks) {
  const hue = (ranks.indexOf(rank) * 137.5 + 20) % 360
  return `hsl(${hue} 70% ${css("--light-line")})`
}

function card(curve, state, starts, kept) {
  const place = h("div", { class: "plot" })
  const outside = h("p", { class: "quiet absent" })
  const absent = h("p", { class: "quiet absent" }) // ranks that are not drawn, or not exactly
  const note = []
  if (curve.not_finite) note.push(`${counted(curve.not_finite, "value")} NaN or infinite, first at step ${whole(curve.first_not_finite)}`)
  const element = h("figure", {}, h("figcaption", {}, h("span", { class: "tag" }, curve.tag), curve.unit ? ` (${curve.unit})` : "",
    h("span", { class: "quiet" }, ` ${counted(curve.ranks, "rank")}, ${counted(curve.points, "point")}`),
    note.length ? h("span", { class: "alert" }, ` ${note.join("; ")}`) : null,
    curve.compared?.partings.map((one, index) => h("span", { class: "quiet" }, " ", named(curve.compared.runs[index + 1].name, index + 1, `: ${parting(one)}`)))), place, outside, absent)
  let plot = null
  let isSeen = false
  const draw = () => {
    plot?.destroy()
    place.replaceChildren()
    outside.textContent = ""
    plot = drawn(curve, state, starts, place, draw, kept.zoom, outside)
    absent.textContent = [...state.ranks].filter((rank) => !curve.lines.some((line) => line.rank === rank)).map((rank) => curve.others(rank).why).filter(Boolean).join("; ")
  }
  const see = () => {
    if (isSeen || !element.isConnected) return
    isSeen = true
    kept.seen.add(curve.tag)
    draw()
  }
  if (kept.seen.has(curve.tag)) queueMicrotask(see) // as soon as it is placed, so that it does not flicker
  new IntersectionObserver(([entry]) => {
    if (entry.isIntersecting) see()
  }, { rootMargin: "300px" }).observe(element)
  new ResizeObserver(() => plot && plot.width !== place.clientWidth && place.clientWidth && plot.setSize({ width: place.clientWidth, height: HEIGHT })).observe(place)
  return { curve, element, redraw: () => isSeen && draw() }
}

function drawn(curve, state, starts, place, again, zoom, outside) {
  const { isLog, isLogX, smoothing } = state
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
    const values = plain(line.values)
    tables.push([Array.from(line.steps), values, ...(smoothing ? [smoothed(values, smoothing)] : [])])
    if (smoothing) series.push({ label, stroke, width: 0.5, alpha: 0.35, class: "raw", points }, { label: `${label}, smoothed ${smoothing}`, stroke, width: width + 0.4, value: said, points })
    else series.push({ label, stroke, width, value: said, points: { show: line.steps.length < 40, size: 4 } })
  }
  if (curve.compared) {
    if (curve.median) add(curve.median, "median", css("--quiet"), 1.6)
    curve.compared.lines.forEach((line, index) => {
      const { name, ranks, source } = curve.compared.runs[index]
      if (line && state.runs.has(index)) add(line, `${name}${source < 0 ? ", merged" : ranks > 1 ? `, rank ${source}` : ""}`, runColor(index), 1.5)
    })
  } else if (curve.merged) add(curve.merged, "merged", css("--text"), 1)
  for (const rank of [...state.ranks].sort((a, b) => a - b)) {
    const line = curve.lines.find((one) => one.rank === rank)
    const other = line ? { line, label: `rank ${rank}` } : curve.others(rank)
    other.next?.then(again)
    if (other.then) other.then(again)
    else if (other.line?.steps.length) add(other.line, other.label, color(rank, state.known), 1)
  }
  if (curve.median && !curve.compared) add(curve.median, "median", css("--accent"), 2.2) // on top of the ranks
  if (!tables.length) {
    place.append(h("p", { class: "quiet" }, "no rank is chosen"))
    return null
  }
  let data = uPlot.join(tables)
  if (isLogX) {
    const first = data[0].findIndex((step) => step > 0)
    data = data.map((values) => (first < 0 ? [] : values.slice(first)))
  }
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
    curve.compared?.partings.forEach((one, index) => {
      if (one?.parts_at != null && state.runs.has(index + 1)) line(one.parts_at, runColor(index + 1))
    })
    ctx.setLineDash([])
    if (curve.first_not_finite != null) line(curve.first_not_finite, css("--bad"))
    ctx.restore()
  }
  const zoomed = (u, key) => {
    const { min, max } = u.scales.x
    if (key !== "x" || min == null || !data[0].length) return
    if (min <= data[0][0] && max >= data[0].at(-1)) zoom.delete(curve.tag)
    else zoom.set(curve.tag, { min, max })
  }
  const before = zoom.get(curve.tag)
  const plot = new uPlot(
    {
      width: place.clientWidth || 500, height: HEIGHT, series, bands,
      scales: { x: { time: false, ...(isLogX ? { distr: 3, range: (_, low, high) => (low == null ? [1, 10] : [low, Math.max(high, low * 1.01)]) } : {}) }, y: isLog ? { distr: 3, range: logRange } : state.isWhole ? {} : { range: (u, low, high) => withoutOutliers(u, low, high, outside) } },
      axes: [{ ...axis, ...(isLogX ? logAxis : {}), values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : whole(tick))) },
        { ...axis, size: axisWidth, space: 26, ...(isLog ? logAxis : {}), values: (_, ticks) => ticksSaid(ticks) }],
      cursor: { dataIdx: nearest, points: { size: 5 } },
      legend: { live: true },
      hooks: { drawAxes: [marks], setScale: [zoomed] },
    },
    data, place,
  )
  if (before) plot.setScale("x", before)
  // With the arrow keys, the legend shows the values of one step after the other.
  plot.over.tabIndex = 0
  plot.over.setAttribute("aria-label", `values of ${curve.tag}; arrow keys go through its steps`)
  plot.over.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key]
    if (!by || !data[0].length) return
    event.preventDefault()
    const index = Math.max(0, Math.min(data[0].length - 1, plot.cursor.left < 0 ? 0 : (plot.cursor.idx ?? 0) + by))
    plot.setCursor({ left: plot.valToPos(data[0][index], "x"), top: 0 })
  })
  return plot
}

// As wide as its longest tick, and the same for most curves.
const axisWidth = (_, texts) => Math.max(64, 24 + 6.5 * Math.max(0, ...(texts ?? []).map((text) => text.length)))

// The range of the points that are shown, without the few that are far out; `outside` reports these.
function withoutOutliers(u, low, high, outside) {
  outside.textContent = ""
  if (low == null) return [0, 1]
  const [first, last] = u.series[0].idxs ?? [0, u.data[0].length - 1]
  const shown = u.data.slice(1).flatMap((values) => values.slice(first, last + 1).filter((value) => value != null)).sort((a, b) => a - b)
  const least = shown[Math.floor(shown.length * 0.01)]
  const most = shown[Math.ceil(shown.length * 0.99) - 1]
  if (!(most > least) || high - low <= FAR * (most - least)) return uPlot.rangeNum(low, high, 0.1, true)
  const room = (most - least) / 4
  const [from, to] = [Math.max(low, least - room), Math.min(high, most + room)]
  const ends = [low < from ? `down to ${number(low)}` : "", high > to ? `up to ${number(high)}` : ""].filter(Boolean).join(" and ")
  outside.textContent = `Some points lie outside, ${ends}: tick outliers to see them.`
  return uPlot.rangeNum(from, to, 0.1, true)
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
