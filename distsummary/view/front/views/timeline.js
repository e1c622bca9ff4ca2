// When each rank of each attempt ran and how it ended, and how many ranks recorded each step.

import uPlot from "uplot"
import { canvas, counted, css, h, moment, number, on, table, tickDistance, whole } from "./dom.js"

const LEFT = 64, RIGHT = 12, TOP = 6, BOTTOM = 26
const COLORS = { finished: "--good", running: "--blue", superseded: "--quiet", unknown: "--quiet", incomplete: "--warn", interrupted: "--warn" }

export function timeline({ overview, timeline: { bars, counts }, marks: { attempts: starts, times } }) {
  const found = []
  const hung = overview.verdicts.find((one) => one.cause === "hang")
  if (bars.length) found.push(chart(bars, hung && times ? { rank: hung.rank, since: times.seconds[times.seconds.length - 1] } : null))
  else found.push(h("p", { class: "quiet" }, `When the ranks ran is not known: ${{ "no run.json": "there is no run.json", unreadable: "run.json cannot be read" }[overview.state] ?? "no rank has reported it"}.`))
  if (starts.length > 1) {
    found.push(h("h3", {}, "Attempts"), table(["attempt", "first step", "last step"], starts.map((one) => [one.attempt, one.first_step, one.last_step].map(whole)), { numbers: [0, 1, 2] }))
  }
  if (counts && counts.ranks.some((count) => count !== counts.ranks[0])) {
    found.push(ranksPerStep(counts))
  } else if (counts) {
    found.push(h("p", { class: "quiet" }, `Each recorded step has values of ${counted(counts.ranks[0] ?? 0, "rank")}.`))
  }
  return found
}

// `hang`: the rank that hung, and when the last step ended.
function chart(bars, hang) {
  const ranks = [...new Set(bars.map((bar) => bar.rank))].sort((a, b) => a - b)
  const row = new Map(ranks.map((rank, index) => [rank, index]))
  const begin = Math.min(...bars.map((bar) => bar.begin))
  const end = Math.max(...bars.map((bar) => bar.end), begin + 1e-3)
  const size = Math.max(1.5, Math.min(24, 420 / ranks.length))
  const height = TOP + BOTTOM + Math.ceil(size * ranks.length)
  const said = h("p", { class: "readout", "aria-live": "polite" })
  const { element } = canvas(height, "ranks by time; arrow keys go through the bars", (context, width) => {
    const plot = width - LEFT - RIGHT
    const toX = (time) => LEFT + ((time - begin) / (end - begin)) * plot
    context.clearRect(0, 0, width, height)
    for (const bar of bars) {
      const y = TOP + row.get(bar.rank) * size
      const x = toX(bar.begin)
      context.fillStyle = css(COLORS[bar.state] ?? "--bad")
      context.fillRect(x, y + (size > 6 ? 2 : 0), Math.max(2, toX(bar.end) - x - 1), size - (size > 6 ? 4 : 0.4))
      if (hang && bar.begin <= hang.since && hang.since < bar.end) {
        context.fillStyle = css(bar.rank === hang.rank ? "--bad" : "--vermilion-pale")
        context.fillRect(toX(hang.since), y + (size > 6 ? 2 : 0), toX(bar.end) - toX(hang.since) - 1, size - (size > 6 ? 4 : 0.4))
      }
      if (size >= 16) {
        context.save()
        context.beginPath()
        context.rect(x, y, Math.max(0, toX(bar.end) - x), size)
        context.clip()
        context.fillStyle = css("--on-bar")
        context.textBaseline = "middle"
        context.fillText(`attempt ${bar.attempt}: ${bar.state}${bar.step >= 0 ? `, step ${whole(bar.step)}` : ""}`, x + 6, y + size / 2)
        context.restore()
      }
    }
    context.fillStyle = css("--quiet")
    context.textAlign = "right"
    context.textBaseline = "middle"
    const every = Math.max(1, Math.ceil(14 / size))
    for (let index = 0; index < ranks.length; index += every) context.fillText(`rank ${ranks[index]}`, LEFT - 6, TOP + (index + 0.5) * size)
    context.textBaseline = "top"
    context.textAlign = "center"
    const unit = end - begin < 120 ? 1 : end - begin < 7200 ? 60 : 3600 // as `lasting` says it
    const distance = tickDistance(0, (end - begin) / unit, plot / 110) * unit
    for (let time = 0; time <= end - begin; time += distance) context.fillText(`${number(time / unit, 3)} ${{ 1: "s", 60: "min", 3600: "h" }[unit]}`, Math.max(LEFT + 8, Math.min(width - 24, toX(begin + time))), height - BOTTOM + 6)
  })
  const report = (bar) => {
    said.textContent = bar ? `rank ${bar.rank}, attempt ${bar.attempt} (${bar.role}) on ${bar.host || "an unknown host"}: ${bar.state}, ${moment(bar.begin)} to ${moment(bar.end)}${bar.error ? `: ${bar.error}` : ""}` : ""
  }
  element.addEventListener("pointermove", (event) => {
    const rank = ranks[Math.floor((event.offsetY - TOP) / size)]
    const time = begin + ((event.offsetX - LEFT) / (element.clientWidth - LEFT - RIGHT)) * (end - begin)
    report(bars.find((one) => one.rank === rank && one.begin <= time && time <= one.end))
  })
  const ordered = [...bars].sort((a, b) => a.rank - b.rank || a.begin - b.begin)
  let chosen = -1
  element.tabIndex = 0
  element.addEventListener("keydown", (event) => {
    const by = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[event.key]
    if (!by) return
    event.preventDefault()
    chosen = Math.max(0, Math.min(ordered.length - 1, chosen + by))
    report(ordered[chosen])
  })
  return h("figure", { class: "wide" }, h("figcaption", {}, h("span", { class: "tag" }, "Ranks and attempts"), h("span", { class: "quiet" }, ` since ${moment(begin)}; ends are the last sign of life${hang ? `; red: the hang of rank ${hang.rank}, while the others waited` : ""}`)), element, said)
}

function ranksPerStep({ steps, ranks }) {
  const place = h("div", { class: "plot" })
  const axis = () => ({ stroke: css("--quiet"), grid: { stroke: css("--grid"), width: 1 }, font: `11px ${css("--font")}` })
  let plot = null
  const draw = () => {
    plot?.destroy()
    plot = new uPlot({
      width: place.clientWidth || 800, height: 150, scales: { x: { time: false }, y: { range: (_, low, high) => [0, high + 1] } },
      series: [{ label: "step" }, { label: "ranks", stroke: css("--blue"), fill: css("--band"), paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }],
      axes: [axis(), { ...axis(), incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] }],
    }, [Array.from(steps), Array.from(ranks)], place)
  }
  new ResizeObserver(() => place.clientWidth && plot?.width !== place.clientWidth && draw()).observe(place)
  on("theme", () => plot && draw())
  return h("figure", { class: "wide" }, h("figcaption", {}, h("span", { class: "tag" }, "Ranks that recorded each step"), h("span", { class: "quiet" }, " the fewest of each column")), place)
}
