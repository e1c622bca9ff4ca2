// The page of a run: overview, curves, heat maps and so on; and, when it is served, the list of the runs.

import "uplot/dist/uPlot.min.css"
import "./page.css"
import { compare } from "./compare.js"
import { curves } from "./curves.js"
import { ask, isServed, readData, runName } from "./data.js"
import { h, moment } from "./dom.js"
import { heatMaps } from "./heat.js"
import { histograms } from "./histograms.js"
import { landscapes } from "./landscape.js"
import { media } from "./media.js"
import { norms } from "./norms.js"
import { badge, overview } from "./overview.js"
import { runsTable } from "./runs.js"
import { timeline } from "./timeline.js"

const VIEWS = [["overview", "Overview", overview], ["compare", "Compare", compare], ["curves", "Curves", curves], ["heat", "Ranks by steps", heatMaps], ["timeline", "Timeline", timeline],
  ["norms", "Norms of parameters", norms],
  ["histograms", "Histograms", histograms],
  ["media", "Images and texts", media],
  ["landscape", "Loss landscape", landscapes]]

const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark"

function changeTheme() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark"
  document.dispatchEvent(new Event("theme"))
}

let shown = [] // the views that have something to show

function go(name) {
  document.getElementById(name).scrollIntoView()
  document.getElementById(name).focus({ preventScroll: true })
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|TEXTAREA|SELECT/.test(event.target.tagName)) return
  if (shown[Number(event.key) - 1]) go(shown[Number(event.key) - 1].name)
  else if (event.key === "d") changeTheme()
  else if (event.key === "/") {
    event.preventDefault()
    document.getElementById("filter")?.focus()
  }
})
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("theme")))

async function start() {
  if (!isServed) return showRun(await readData())
  const name = runName()
  const { data: list } = await ask("runs")
  const isAlone = list.runs.length === 1 && list.runs[0].name === "."
  if (name == null && !isAlone) return showRuns(list)
  return showRun((await ask("data", { run: name ?? "." })).data, !isAlone)
}

const theme = () => h("button", { onclick: changeTheme, title: "key d" }, "dark / light")

function showRun(data, hasList = false) {
  const { overview: run } = data
  shown = VIEWS.map(([name, title, view]) => ({ name, title, content: view(data) })).filter((one) => one.content?.length)
  document.title = run.name
  document.getElementById("app").replaceChildren(
    h("header", {}, hasList ? h("a", { href: "./" }, "all runs") : null, h("h1", {}, run.name, " ", badge(run.state)),
      h("nav", { "aria-label": "views" }, shown.map(({ name, title }, index) => h("a", { href: `#${name}`, title: `key ${index + 1}` }, title))),
      theme()),
    h("main", {}, shown.map(({ name, title, content }) => h("section", { id: name, tabindex: -1, "aria-label": title }, h("h2", {}, title), content))),
    h("footer", {}, `${run.path}, as it was at ${moment(run.made)}. Keys: 1 to ${shown.length} views, / filter, d dark or light. Made by distsummary.`),
  )
  document.documentElement.dataset.ready = "true"
}

function showRuns(list) {
  document.title = `${list.directory}: runs`
  document.getElementById("app").replaceChildren(
    h("header", {}, h("h1", {}, list.directory), h("nav"), theme()),
    h("main", {}, h("section", { id: "runs", "aria-label": "runs" }, runsTable(list, {}))),
    h("footer", {}, "Keys: arrows or j and k choose a run, Enter opens it, / filter, d dark or light. Made by distsummary."),
  )
  document.documentElement.dataset.ready = "true"
}

start().catch((error) => {
  document.getElementById("app").replaceChildren(h("p", { class: "alert", role: "alert" }, `This page cannot be shown: ${error.message}`))
  throw error
})
