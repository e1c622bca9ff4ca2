// Heat maps: rows by steps, drawn for the norms and the histograms of parameters.

import { columnAt } from "../charts/heat"
import { canvas, css, h, number, tickDistance, whole } from "./dom.js"

const LEFT = 64, RIGHT = 12, TOP = 8, BOTTOM = 26
const SEQUENTIAL = ["#0d0887", "#5302a3", "#8b0aa5", "#b83289", "#db5c68", "#f48849", "#febd2a", "#f0f921"].map(rgb)
const DIVERGING = ["#2166ac", "#4393c3", "#92c5de", "#d1d1d1", "#f4a582", "#d6604d", "#b2182b"].map(rgb)

// A canvas with the map that `chosen()` gives: `first_steps`, `last_step`, `rows`, `columns`, `values`, and a text
// for each row in `labels` (or `ticks`: [part of the height, text]); `left`: the width of these. `over` draws on top of it, `report` receives the cell that is
// pointed at or reached by the arrow keys, [row, column], or null.
export function heatCanvas({ height, label, chosen, over, report, left = () => LEFT }) {
  let cell = null
  const { element, paint } = canvas(height, label, (context, width) => draw(context, width, height, chosen(), left(width), over, cell))
  element.tabIndex = 0
  const move = (next) => {
    cell = next
    report(cell)
    paint()
  }
  const at = (event) => cellAt(chosen(), event.offsetX, event.offsetY, element.clientWidth, height, left(element.clientWidth))
  element.addEventListener("pointermove", (event) => move(at(event)))
  element.addEventListener("pointerleave", () => move(null))
  element.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key]
    if (!step) return
    event.preventDefault()
    const one = chosen()
    const [row, column] = cell ?? [0, 0]
    move([clamp(row + step[0], 0, one.rows - 1), clamp(column + step[1], 0, one.columns - 1)])
  })
  return { element, move, reset: () => move(null), cell: () => cell }
}

export const clamp = (value, low, high) => Math.max(low, Math.min(high, value))
// From which value to which the colours go: all but the outermost hundredth at each end.
export function range(one) {
  if (one.range) return one.range
  const sorted = Float32Array.from(one.values).filter((value) => (one.isLog ? value > 0 : !Number.isNaN(value))).sort()
  const at = (part) => sorted[Math.round(part * (sorted.length - 1))]
  let [low, high] = sorted.length ? [at(0.01), at(0.99)] : [0, 1]
  if (one.kind === "ratio") {
    const far = clamp(Math.max(high, low > 0 ? 1 / low : 1), 1.1, 10)
    one.range = { low: 1 / far, high: far, isLog: true, colors: DIVERGING }
  } else {
    if (high <= low && low > 0 && one.isLog) [low, high] = [low / 2, Math.min(high * 2, one.most ?? Infinity)]
    else if (high <= low) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2]
    one.range = { low, high, isLog: low > 0 && (one.isLog || high / low > 20), colors: SEQUENTIAL }
  }
  return one.range
}

function rgb(text) {
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16))
}

function colorOf(value, { low, high, isLog, colors }) {
  const part = isLog ? Math.log(Math.max(value, 1e-45) / low) / Math.log(high / low) : (value - low) / (high - low)
  const at = clamp(part, 0, 1) * (colors.length - 1)
  const left = Math.min(Math.floor(at), colors.length - 2)
  return colors[left].map((one, channel) => one + (colors[left + 1][channel] - one) * (at - left))
}

export function legend(one, unit = "") {
  const scale = range(one)
  const bar = h("canvas", { width: 120, height: 10, class: "legend", "aria-hidden": "true" })
  const context = bar.getContext("2d")
  for (let x = 0; x < 120; x++) {
    const part = x / 119
    const value = scale.isLog ? scale.low * (scale.high / scale.low) ** part : scale.low + (scale.high - scale.low) * part
    context.fillStyle = `rgb(${colorOf(value, scale).map(Math.round).join(" ")})`
    context.fillRect(x, 0, 1, 10)
  }
  return h("span", { class: "legend" }, number(scale.low, 3), bar, [`${number(scale.high, 3)} ${unit}`.trim(), scale.isLog ? "log colours" : ""].filter(Boolean).join(", "))
}

const spanOf = (one) => Math.max(1, one.last_step + 1 - one.first_steps[0])

function cellAt(one, x, y, width, height, left) {
  const part = (x - left) / (width - left - RIGHT)
  const row = Math.floor(((y - TOP) / (height - TOP - BOTTOM)) * one.rows)
  if (part < 0 || part >= 1 || row < 0 || row >= one.rows) return null
  return [row, columnAt(one, one.first_steps[0] + part * spanOf(one))]
}

function draw(context, width, height, one, left, over, cell) {
  const plotWidth = width - left - RIGHT
  const plotHeight = height - TOP - BOTTOM
  const rowHeight = plotHeight / one.rows
  const first = one.first_steps[0]
  const toX = (step) => left + ((step - first) / spanOf(one)) * plotWidth
  context.clearRect(0, 0, width, height)
  context.fillStyle = css("--empty")
  context.fillRect(left, TOP, plotWidth, plotHeight)
  context.imageSmoothingEnabled = false
  const pixels = Math.max(1, Math.min(4096, Math.round(plotWidth * (window.devicePixelRatio || 1))))
  context.drawImage(picture(one, pixels), left, TOP, plotWidth, plotHeight)
  axes(context, width, height, one, rowHeight, toX, left)
  context.save()
  context.beginPath()
  context.rect(left - 1, TOP - 14, plotWidth + 2, plotHeight + 16)
  context.clip()
  over(context, { toX, rowHeight, top: TOP, bottom: TOP + plotHeight, right: left + plotWidth })
  if (cell) {
    const [row, column] = cell
    const x = toX(one.first_steps[column])
    const end = toX(column + 1 < one.columns ? one.first_steps[column + 1] : one.last_step + 1)
    context.strokeStyle = css("--blue")
    context.lineWidth = 2
    context.strokeRect(x - 1, TOP + row * rowHeight - 1, Math.max(2, end - x) + 2, rowHeight + 2)
  }
  context.restore()
}

// Dashed lines where the job was started again.
export function restarts(context, { toX, top, bottom }, starts) {
  context.setLineDash([4, 4])
  context.strokeStyle = css("--text")
  for (const start of starts.slice(1)) {
    context.beginPath()
    context.moveTo(toX(start.first_step), top)
    context.lineTo(toX(start.first_step), bottom)
    context.stroke()
  }
  context.setLineDash([])
}

// The cells as an image of `pixels` columns and a row for each row of the map.
function picture(one, pixels) {
  if (one.picture?.width === pixels) return one.picture
  const image = new ImageData(pixels, one.rows)
  const scale = range(one)
  const widths = Array.from(one.first_steps.subarray(1), (step, index) => step - one.first_steps[index]).sort((a, b) => a - b)
  const usual = widths.length && one.hasGaps !== false ? widths[widths.length >> 1] * 1.5 : Infinity // what lies farther from its start is a gap
  for (let x = 0; x < pixels; x++) {
    const step = one.first_steps[0] + ((x + 0.5) / pixels) * spanOf(one)
    const column = columnAt(one, step)
    if (step - one.first_steps[column] > usual) continue
    for (let row = 0; row < one.rows; row++) {
      const index = row * one.columns + column
      const at = (row * pixels + x) * 4
      if (one.bad?.[index]) image.data.set((x + row) % 4 < 3 ? [255, 0, 255, 255] : [0, 0, 0, 255], at)
      else if (!Number.isNaN(one.values[index])) image.data.set([...colorOf(one.values[index], scale), 255], at)
    }
  }
  const found = h("canvas", { width: pixels, height: one.rows })
  found.getContext("2d").putImageData(image, 0, 0)
  one.picture = found
  return found
}

function axes(context, width, height, one, rowHeight, toX, left) {
  context.fillStyle = css("--quiet")
  context.textBaseline = "top"
  context.textAlign = "center"
  const first = one.first_steps[0]
  const distance = tickDistance(first, one.last_step, (width - left) / 72, 1)
  for (let step = Math.ceil(first / distance) * distance + 0; step <= one.last_step; step += distance) {
    context.fillText(whole(step), clamp(toX(step), left + 8, width - RIGHT - 16), height - BOTTOM + 6)
  }
  context.textAlign = "right"
  context.fillText("step", left - 6, height - BOTTOM + 6)
  context.textBaseline = "middle"
  for (const [part, text] of one.ticks ?? []) context.fillText(text, left - 6, TOP + clamp(part * one.rows * rowHeight, 6, one.rows * rowHeight - 6))
  if (one.ticks) return
  const every = Math.max(1, Math.ceil(14 / rowHeight))
  for (let row = 0; row < one.rows; row += every) {
    context.fillText(fitting(context, one.labels?.[row] ?? `rank ${one.ranks[row * one.group]}`, left - 10), left - 6, TOP + (row + 0.5) * rowHeight)
  }
}

// As much of the end of a text as fits into a width; names of parameters differ at their ends.
function fitting(context, text, width) {
  if (context.measureText(text).width <= width) return text
  let shown = text.slice(-200)
  while (shown && context.measureText(`…${shown}`).width > width) shown = shown.slice(1)
  return `…${shown}`
}
