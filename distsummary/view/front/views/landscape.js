// Loss landscapes: contours with the path of the training, and how far the path is from what the plane shows.

import uPlot from "uplot"
import { logTicks } from "../charts/plot"
import { RUN_COLORS } from "../charts/series"
import { canvas, css, h, number, on, table, tickDistance, whole } from "./dom.js"

const LEFT = 62, RIGHT = 92, TOP = 10, BOTTOM = 44, HEIGHT = 430
const COLORS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"]
  .map((text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)))
const GREY = [160, 160, 160]
const [INTERPOLATED, MISSING] = [1, 2] // of `how`, see view/surfaces.py
const FINE = 5 // pixels between the points that isolines go through
const NEAR = 10 // pixels from a checkpoint at which it is meant

export function landscapes({ landscapes: found }) {
  if (!found) return null
  const place = h("div")
  const put = (index) => place.replaceChildren(...one(found.shown[index]))
  const choice = h("select", { id: "landscapes", onchange: () => put(choice.selectedIndex) }, found.shown.map((of) => h("option", {}, of.name)))
  put(0)
  return [
    found.shown.length > 1 ? h("div", { class: "tools" }, h("label", {}, "landscape ", choice)) : null,
    found.left_out.length ? h("p", { class: "quiet" }, `${whole(found.left_out.length)} more are not in this page: ${found.left_out.join(", ")}`) : null,
    place,
  ].filter((element) => element != null)
}

function one(of) {
  const { path } = of
  const facts = [...of.facts]
  for (const name of ["lowest", "highest"]) {
    if (of[name]) facts.push([`${name} loss`, of.is_line ? number(of[name].loss) : `${number(of[name].loss)} at ${number(of[name].x, 3)}, ${number(of[name].y, 3)}`])
  }
  const caption = h("figcaption", {}, h("span", { class: "tag" }, of.name), h("span", { class: "quiet" }, ` ${[of.title, of.made].filter(Boolean).join("; ")}`))
  const notes = of.notes.map((note) => h("p", { class: "quiet" }, note))
  const side = h("div", {}, ...(path.count > 1 && !of.is_line ? losses(of) : []),
    h("details", { open: path.count < 2 || of.is_line }, h("summary", {}, "How it was made"), table(null, facts)),
    path.count > 1 ? h("details", {}, h("summary", {}, `Checkpoints (${whole(path.count)})`), h("div", { class: "scroll" }, checkpoints(of))) : null)
  return [h("figure", { class: "wide" }, caption, h("div", { class: "panes" }, h("div", {}, ...(of.is_line ? line(of) : surface(of)), ...notes), side))]
}

function checkpoints({ path, unit }) {
  const hasRuns = path.runs.length > 1
  const rows = path.names.map((name, k) => [name, ...(hasRuns ? [path.runs[path.run[k]]] : []), number(path.true[k]), number(path.plane[k]), isCentre(path, k) ? "the centre" : share(path.outside[k])])
  const head = [unit, ...(hasRuns ? ["run"] : []), "true loss", "loss in the plane", "outside the plane"]
  return table(head, rows, { numbers: head.map((_, column) => column).filter((column) => !hasRuns || column !== 1) })
}

const isCentre = (path, k) => path.x[k] === 0 && path.y[k] === 0 // it has no distance from itself

const share = (value) => (Number.isNaN(value) ? "not recorded" : `${number(100 * value, 3)} %`)

// --- the surface

function surface(of) {
  const said = h("p", { class: "readout", "aria-live": "polite" })
  let point = null // column and row, or the number of a checkpoint
  const label = `contours of the loss, ${of.axes[0]} by ${of.axes[1]}: ${of.title || of.name}`
  const { element, paint } = canvas(HEIGHT, label, (context, width) => draw(context, width, of, point))
  element.tabIndex = 0
  const move = (next) => {
    point = next
    said.textContent = point ? described(of, point) : ""
    paint()
  }
  element.addEventListener("pointermove", (event) => move(pointAt(of, event.offsetX, event.offsetY, element.clientWidth)))
  element.addEventListener("pointerleave", () => move(null))
  element.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key]
    if (!step) return
    event.preventDefault()
    const [column, row] = point?.column != null ? [point.column + step[0], point.row + step[1]] : [of.columns >> 1, of.rows >> 1]
    move({ column: Math.max(0, Math.min(of.columns - 1, column)), row: Math.max(0, Math.min(of.rows - 1, row)) })
  })
  const key = [
    of.stretch === "linear" ? "colours: loss" : `colours: ${of.scale}`,
    of.path.count > 1 ? `line: path of the training${new Set(of.path.stretch).size > of.path.runs.length ? ", but where checkpoints are missing" : ""}; dots: checkpoints, in the colour of their own loss` : null,
    `star: the centre, true loss ${number(of.path.true.at(-1))}, in the plane ${number(of.path.plane.at(-1))}`,
    "the axes have scales of their own",
    of.how?.includes(MISSING) ? "stripes: not computed" : null,
    of.how?.includes(3) ? "grey: the loss is not finite" : null,
  ]
  return [element, said, h("p", { class: "quiet" }, `${key.filter(Boolean).join("; ")}. Point at it, or move with the arrow keys.`),
    ...(of.path.runs.length > 1 ? [h("p", {}, of.path.runs.map((run, index) => h("span", { class: "key" }, swatch(runColor(of.path, index)), run)))] : [])]
}

function swatch(fill) {
  const element = h("i", { class: "swatch" })
  element.style.background = fill
  return element
}

const runColor = (path, index) => (path.runs.length > 1 ? css(RUN_COLORS[index % RUN_COLORS.length]) : "#000")

function scales(of, width) {
  const spanX = of.x.at(-1) - of.x[0] || 1, spanY = of.y.at(-1) - of.y[0] || 1
  const right = width < 520 ? 66 : RIGHT
  const plotWidth = width - LEFT - right, plotHeight = HEIGHT - TOP - BOTTOM
  return {
    plotWidth, plotHeight,
    toX: (x) => LEFT + ((x - of.x[0]) / spanX) * plotWidth,
    toY: (y) => TOP + plotHeight - ((y - of.y[0]) / spanY) * plotHeight,
    ofX: (at) => of.x[0] + ((at - LEFT) / plotWidth) * spanX,
    ofY: (at) => of.y[0] + ((TOP + plotHeight - at) / plotHeight) * spanY,
  }
}

function pointAt(of, x, y, width) {
  const { toX, toY, ofX, ofY, plotWidth, plotHeight } = scales(of, width)
  let best = null, distance = NEAR
  for (let k = 0; k < of.path.names.length; k++) {
    const away = Math.hypot(toX(of.path.x[k]) - x, toY(of.path.y[k]) - y)
    if (away <= distance) [best, distance] = [k, away]
  }
  if (best != null) return { checkpoint: best }
  if (x < LEFT || x > LEFT + plotWidth || y < TOP || y > TOP + plotHeight) return null
  return { column: nearest(of.x, ofX(x)), row: nearest(of.y, ofY(y)) }
}

function nearest(axis, value) {
  let found = 0
  axis.forEach((at, index) => { if (Math.abs(at - value) < Math.abs(axis[found] - value)) found = index })
  return found
}

function described(of, { checkpoint: k, column, row }) {
  const { path } = of
  if (k != null) {
    const run = path.runs.length > 1 ? `${path.runs[path.run[k]]}, ` : ""
    const outside = isCentre(path, k) ? "" : `; of its distance from the end, ${share(path.outside[k])} lies outside the plane`
    return `${run}${of.unit} ${path.names[k]}: true loss ${number(path.true[k])}, in the plane ${number(path.plane[k])}${outside}`
  }
  const at = row * of.columns + column
  const how = of.how?.[at]
  const loss = how === MISSING ? "not computed" : `loss ${Number.isNaN(of.z[at]) ? "not finite" : number(of.z[at])}${how === INTERPOLATED ? ", interpolated" : ""}`
  return `point ${number(of.x[column], 4)}, ${number(of.y[row], 4)}: ${loss}`
}

// How far up the levels a loss is: 0 at the lowest, 1 at the highest.
function placeOf(levels, loss) {
  const last = levels.length - 1
  if (loss <= levels[0]) return 0
  if (loss >= levels[last]) return 1
  let low = 0, high = last
  while (high - low > 1) {
    const middle = (low + high) >> 1
    if (levels[middle] <= loss) low = middle
    else high = middle
  }
  return (low + (loss - levels[low]) / (levels[high] - levels[low])) / last
}

function shade(part) {
  const at = part * (COLORS.length - 1)
  const left = Math.min(Math.floor(at), COLORS.length - 2)
  return COLORS[left].map((channel, index) => channel + (COLORS[left + 1][index] - channel) * (at - left))
}

// One colour for each step between two levels.
function bandColor(levels, loss) {
  if (!Number.isFinite(loss)) return GREY
  const bands = levels.length - 1
  return colorOfBand(bandOf(placeOf(levels, loss), bands), bands)
}

const bandOf = (place, bands) => Math.min(bands - 1, Math.floor(place * bands + 1e-9))
const colorOfBand = (band, bands) => shade(bands > 1 ? band / (bands - 1) : 0.5)

const rgb = (channels) => `rgb(${channels.map(Math.round).join(" ")})`

// How far up the levels the loss is at `width` by `height` places of the plane, from top to bottom: bilinear between
// the points, on the scale of the colours; NaN in cells with a corner that is not finite.
function sampled(of, width, height) {
  const heights = Float64Array.from(of.z, (loss) => (Number.isNaN(loss) ? NaN : placeOf(of.levels, loss)))
  const found = new Float64Array(width * height)
  const place = (axis, value) => {
    let cell = 0
    while (cell < axis.length - 2 && axis[cell + 1] <= value) cell++
    return [cell, (value - axis[cell]) / (axis[cell + 1] - axis[cell])]
  }
  const columns = Array.from({ length: width }, (_, x) => place(of.x, of.x[0] + (x / (width - 1)) * (of.x.at(-1) - of.x[0])))
  for (let y = 0; y < height; y++) {
    const [row, v] = place(of.y, of.y[0] + (1 - y / (height - 1)) * (of.y.at(-1) - of.y[0]))
    for (let x = 0; x < width; x++) {
      const [column, u] = columns[x]
      const at = row * of.columns + column
      const low = (1 - u) * heights[at] + u * heights[at + 1]
      const high = (1 - u) * heights[at + of.columns] + u * heights[at + of.columns + 1]
      found[y * width + x] = (1 - v) * low + v * high
    }
  }
  return found
}

// Filled contours and isolines as a picture of `width` by `height` pixels.
function picture(of, width, height, ratio) {
  if (of.picture?.width === width && of.picture.height === height) return of.picture
  const found = h("canvas", { width, height })
  const context = found.getContext("2d")
  const image = new ImageData(width, height)
  const bands = of.levels.length - 1
  const colors = Array.from({ length: bands }, (_, band) => [...colorOfBand(band, bands), 255])
  sampled(of, width, height).forEach((place, at) => {
    if (!Number.isNaN(place)) image.data.set(colors[bandOf(place, bands)], at * 4)
  })
  context.putImageData(image, 0, 0)
  // Isolines by marching squares, on points that are closer than those of the grid.
  const columns = Math.max(2, Math.round(width / (FINE * ratio))), rows = Math.max(2, Math.round(height / (FINE * ratio)))
  const stepX = (width - 1) / (columns - 1), stepY = (height - 1) / (rows - 1)
  context.strokeStyle = "#fff"
  context.globalAlpha = 0.45
  context.lineWidth = 0.6 * ratio
  context.beginPath()
  const heights = sampled(of, columns, rows).map((place) => place * bands)
  for (let row = 0; row + 1 < rows; row++) {
    for (let column = 0; column + 1 < columns; column++) {
      const at = row * columns + column
      const corners = [heights[at], heights[at + 1], heights[at + columns + 1], heights[at + columns]]
      if (corners.some(Number.isNaN)) continue
      const places = [[column, row], [column + 1, row], [column + 1, row + 1], [column, row + 1]]
      for (let level = Math.max(1, Math.ceil(Math.min(...corners))); level <= Math.min(of.levels.length - 2, Math.max(...corners)); level++) {
        const crossed = []
        for (let side = 0; side < 4; side++) {
          const next = (side + 1) % 4
          const [from, to] = [corners[side], corners[next]]
          if ((from < level) === (to < level)) continue
          const part = (level - from) / (to - from)
          crossed.push([0, 1].map((axis) => places[side][axis] + part * (places[next][axis] - places[side][axis])))
        }
        for (let pair = 0; pair + 1 < crossed.length; pair += 2) {
          context.moveTo(crossed[pair][0] * stepX, crossed[pair][1] * stepY)
          context.lineTo(crossed[pair + 1][0] * stepX, crossed[pair + 1][1] * stepY)
        }
      }
    }
  }
  context.stroke()
  of.picture = found
  return found
}


function draw(context, width, of, point) {
  const { plotWidth, plotHeight, toX, toY } = scales(of, width)
  if (plotWidth < 20) return
  context.clearRect(0, 0, width, HEIGHT)
  const ratio = window.devicePixelRatio || 1
  holes(context, of, toX, toY)
  context.drawImage(picture(of, Math.round(plotWidth * ratio), Math.round(plotHeight * ratio), ratio), LEFT, TOP, plotWidth, plotHeight)
  loosePoints(context, of, toX, toY)
  axes(context, width, of, toX, toY, plotWidth, plotHeight)
  colorBar(context, of, LEFT + plotWidth + 14, plotHeight, width)
  context.save()
  context.beginPath()
  context.rect(LEFT - 8, TOP - 8, plotWidth + 16, plotHeight + 16)
  context.clip()
  if (of.path.count > 1) drawPath(context, of, toX, toY)
  star(context, toX(0), toY(0))
  if (point?.column != null) {
    context.strokeStyle = "#fff"
    context.lineWidth = 3
    for (const stroke of ["#000", "#fff"]) {
      context.strokeStyle = stroke
      context.lineWidth = stroke === "#000" ? 3 : 1.2
      context.strokeRect(toX(of.x[point.column]) - 4, toY(of.y[point.row]) - 4, 8, 8)
    }
  }
  context.restore()
}

// Cells without a surface: grey if a loss is not finite, striped if one was not computed.
function holes(context, of, toX, toY) {
  if (!of.how) return
  for (let row = 0; row + 1 < of.rows; row++) {
    for (let column = 0; column + 1 < of.columns; column++) {
      const corners = [0, 1, of.columns, of.columns + 1].map((more) => row * of.columns + column + more)
      if (corners.every((at) => !Number.isNaN(of.z[at]))) continue
      const [x, y] = [toX(of.x[column]), toY(of.y[row + 1])]
      const [wide, high] = [toX(of.x[column + 1]) - x, toY(of.y[row]) - y]
      context.fillStyle = rgb(GREY)
      if (!corners.some((at) => of.how[at] === MISSING)) context.fillRect(x, y, wide + 0.5, high + 0.5)
      else for (let at = 0; at < wide; at += 6) context.fillRect(x + at, y, 2, high + 0.5)
    }
  }
}

// Points with a loss in no whole cell.
function loosePoints(context, of, toX, toY) {
  if (!of.how) return
  const isFinite = (row, column) => row >= 0 && column >= 0 && row < of.rows && column < of.columns && !Number.isNaN(of.z[row * of.columns + column])
  const isWhole = (row, column) => [[0, 0], [0, 1], [1, 0], [1, 1]].every(([i, j]) => isFinite(row + i, column + j))
  for (let row = 0; row < of.rows; row++) {
    for (let column = 0; column < of.columns; column++) {
      if (!isFinite(row, column) || [[0, 0], [-1, 0], [0, -1], [-1, -1]].some(([i, j]) => isWhole(row + i, column + j))) continue
      context.fillStyle = rgb(bandColor(of.levels, of.z[row * of.columns + column]))
      context.fillRect(toX(of.x[column]) - 3, toY(of.y[row]) - 3, 6, 6)
    }
  }
}

function axes(context, width, of, toX, toY, plotWidth, plotHeight) {
  context.strokeStyle = css("--quiet")
  context.lineWidth = 1
  context.strokeRect(LEFT + 0.5, TOP + 0.5, plotWidth - 1, plotHeight - 1)
  context.fillStyle = css("--quiet")
  const label = (name, room) => (context.measureText(name).width <= room ? name : name.replace(/ \(.*\)$/, ""))
  const ticks = (axis, count) => {
    const [low, high] = [axis[0], axis.at(-1)]
    const distance = tickDistance(low, high, count)
    const found = []
    for (let k = Math.ceil(low / distance - 1e-9); k * distance <= high + 1e-9 * distance; k++) found.push(k * distance)
    return found
  }
  context.textAlign = "center"
  context.textBaseline = "top"
  for (const tick of ticks(of.x, plotWidth / 80)) {
    context.fillRect(toX(tick), TOP + plotHeight, 1, 4)
    context.fillText(number(tick, 3), toX(tick), TOP + plotHeight + 7)
  }
  context.fillText(label(of.axes[0], width - 20), Math.max(LEFT + plotWidth / 2, context.measureText(label(of.axes[0], width - 20)).width / 2 + 4), TOP + plotHeight + 26)
  context.textAlign = "right"
  context.textBaseline = "middle"
  for (const tick of ticks(of.y, plotHeight / 50)) {
    context.fillRect(LEFT - 4, toY(tick), 4, 1)
    context.fillText(number(tick, 3), LEFT - 7, toY(tick))
  }
  context.save()
  context.translate(10, TOP + plotHeight / 2)
  context.rotate(-Math.PI / 2)
  context.textAlign = "center"
  context.fillText(label(of.axes[1], plotHeight + 20), 0, 0)
  context.restore()
}

function colorBar(context, of, x, plotHeight, width) {
  if (of.is_empty) return
  const bands = of.levels.length - 1
  for (let band = 0; band < bands; band++) {
    context.fillStyle = rgb(colorOfBand(band, bands))
    const top = TOP + plotHeight * (1 - (band + 1) / bands)
    context.fillRect(x, top, 12, plotHeight / bands + 0.5)
  }
  context.fillStyle = css("--quiet")
  context.textAlign = "left"
  context.textBaseline = "middle"
  of.ticks.forEach((tick, index) => context.fillText(of.tick_labels[index], x + 16, TOP + plotHeight * (1 - placeOf(of.levels, tick))))
  if (width < 520) return
  context.save()
  context.translate(width - 8, TOP + plotHeight / 2)
  context.rotate(-Math.PI / 2)
  context.textAlign = "center"
  context.fillText(of.scale, 0, 0)
  context.restore()
}

function drawPath(context, of, toX, toY) {
  const { path } = of
  context.lineJoin = "round"
  path.runs.forEach((_, run) => {
    const chosen = path.names.map((_, k) => k).filter((k) => path.run[k] === run)
    for (const [stroke, size] of [["#ffffffd0", 3.6], [runColor(path, run), 1.5]]) {
      context.strokeStyle = stroke
      context.lineWidth = size
      context.beginPath()
      chosen.forEach((k) => context[k && path.stretch[k] === path.stretch[k - 1] ? "lineTo" : "moveTo"](toX(path.x[k]), toY(path.y[k])))
      context.stroke()
    }
  })
  const size = path.names.length > 60 ? 2 : 4
  path.names.forEach((_, k) => {
    context.beginPath()
    context.arc(toX(path.x[k]), toY(path.y[k]), size, 0, 2 * Math.PI)
    context.fillStyle = rgb(bandColor(of.levels, path.true[k]))
    context.fill()
    context.strokeStyle = "#fff"
    context.lineWidth = 1.2
    context.stroke()
  })
  // Names where there is room, those of the ends first.
  const taken = [[toX(0) - 10, toY(0) - 10, 20, 20]]
  const last = path.names.length - 1
  const order = [0, last, ...path.names.map((_, k) => k).slice(1, -1)]
  const overlaps = ([x, y, wide, high]) => taken.some(([a, b, c, d]) => x < a + c && a < x + wide && y < b + d && b < y + high)
  path.names.forEach((_, k) => taken.push([toX(path.x[k]) - 5, toY(path.y[k]) - 5, 10, 10]))
  context.textAlign = "left"
  context.textBaseline = "middle"
  for (const k of order) {
    if (taken.length > 400) break
    const wide = context.measureText(path.names[k]).width + 6
    const spots = [[7, -17], [-7 - wide, -17], [7, 3], [-7 - wide, 3]].map(([dx, dy]) => [toX(path.x[k]) + dx, toY(path.y[k]) + dy, wide, 14])
    const spot = spots.find((box) => !overlaps(box))
    if (!spot) continue
    taken.push(spot)
    context.fillStyle = "#ffffffb8"
    context.fillRect(...spot)
    context.fillStyle = "#000"
    context.fillText(path.names[k], spot[0] + 3, spot[1] + 7.5)
  }
}

function star(context, x, y) {
  context.beginPath()
  for (let corner = 0; corner < 10; corner++) {
    const size = corner % 2 ? 4 : 9
    const turn = (corner / 10) * 2 * Math.PI - Math.PI / 2
    context[corner ? "lineTo" : "moveTo"](x + size * Math.cos(turn), y + size * Math.sin(turn))
  }
  context.closePath()
  context.fillStyle = "#e0202f"
  context.fill()
  context.strokeStyle = "#fff"
  context.lineWidth = 1
  context.stroke()
}

// --- charts

// A log axis is as high as its values; its ticks are at 1, 2 and 5, or evenly spaced below a decade.
const logRange = (_, low, high) => (low == null ? [1, 10] : [low / 1.1, high * 1.1])
const logAxis = { splits: (u, _, low, high) => logTicks(low, high, u.bbox.height / devicePixelRatio, 22), filter: (_, ticks) => ticks }

function losses(of) {
  const { path } = of
  const hasRuns = path.runs.length > 1
  const stroke = (run, isTrue) => (hasRuns ? runColor(path, run) : css(isTrue ? "--blue" : "--orange"))
  const tables = [], series = [], outside = []
  path.runs.forEach((run, index) => {
    const chosen = path.names.map((_, k) => k).filter((k) => path.run[k] === index)
    const pick = (values) => chosen.map((k) => (Number.isFinite(values[k]) && !(path.is_log && values[k] <= 0) ? values[k] : null))
    const numbers = chosen.map((k) => path.numbers[k])
    if (new Set(numbers).size !== numbers.length) return
    tables.push([numbers, pick(path.true), pick(path.plane)])
    outside.push([numbers, chosen.map((k) => (Number.isNaN(path.outside[k]) || isCentre(path, k) ? null : 100 * path.outside[k]))])
    series.push(() => [
      { label: `${hasRuns ? `${run}: ` : ""}true loss`, stroke: stroke(index, true), width: 1.6, points: { size: 5 } },
      { label: `${hasRuns ? `${run}: ` : ""}in the plane`, stroke: stroke(index, false), width: 1.4, dash: [5, 4], points: { size: 4 } },
    ])
  })
  if (!tables.length) return []
  const shown = [chart(`loss${path.is_log ? " (log scale)" : ""} at the checkpoints`, of.unit, uPlot.join(tables), () => series.flatMap((make) => make()), path.is_log, 190)]
  if (outside.some(([, values]) => values.some((value) => value != null))) {
    const lines = () => path.runs.slice(0, outside.length).map((run, index) => ({ label: hasRuns ? run : "outside (%)", stroke: hasRuns ? runColor(path, index) : css("--text"), width: 1.4, points: { size: 4 } }))
    shown.push(chart("residual: share of a checkpoint's distance from the end that lies outside the plane, in %", of.unit, uPlot.join(outside), lines, false, 150, true))
  }
  return shown
}

function line(of) {
  const { path } = of
  const isRow = of.rows === 1
  const shift = of.ends ? 1 : 0 // the axis goes from -1 to 0
  const along = Array.from(isRow ? of.x : of.y, (at) => at + shift)
  const at = Array.from(isRow ? path.x : path.y, (value) => value + shift)
  const isLog = of.stretch === "log"
  const plain = (values) => Array.from(values, (value) => (Number.isFinite(value) && !(isLog && value <= 0) ? value : null))
  const order = at.map((_, k) => k).sort((a, b) => at[a] - at[b]).filter((k, index, all) => !index || at[k] !== at[all[index - 1]])
  const data = uPlot.join([[along, plain(of.z)], [order.map((k) => at[k]), plain(order.map((k) => path.true[k]))]])
  const axis = of.axes[isRow ? 0 : 1]
  return [chart(`${of.scale}, along ${axis}${of.ends ? ` from ${of.ends[0]} to ${of.ends[1]}` : ""}`, axis, data, () => [
    { label: "loss on the line", stroke: css("--blue"), width: 1.6, points: { show: along.length < 60, size: 4 } },
    { label: "true loss of the checkpoints", stroke: css("--bad"), paths: () => null, points: { show: true, size: 8, fill: css("--bad") } },
  ], isLog, 320)]
}

function chart(title, unit, data, series, isLog, high, fromZero = false) {
  const place = h("div", { class: "plot" })
  place.style.minHeight = `${high}px`
  let plot = null
  const draw = () => {
    plot?.destroy()
    const axis = { stroke: css("--quiet"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1 }, font: `11px ${css("--font")}` }
    const said = (_, value) => (value == null ? "" : number(value))
    plot = new uPlot({
      width: place.clientWidth, height: high, scales: { x: { time: false }, y: isLog ? { distr: 3, range: logRange } : fromZero ? { range: { min: { soft: 0, mode: 1 }, max: { pad: 0.1 } } } : {} },
      series: [{ label: unit, value: said }, ...series().map((one) => ({ value: said, ...one }))],
      axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => number(tick, 4)) }, { ...axis, size: 56, space: 24, ...(isLog ? logAxis : {}), values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : number(tick, 4))) }],
    }, data, place)
  }
  new ResizeObserver(() => place.clientWidth && plot?.width !== place.clientWidth && draw()).observe(place)
  on("theme", () => plot && draw())
  return h("div", {}, h("p", { class: "quiet" }, title), place)
}
