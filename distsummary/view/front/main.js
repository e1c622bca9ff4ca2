// The page of a run: overview, curves, heat maps and so on; and, when it is served, the list of the runs.

import "uplot/dist/uPlot.min.css"
import "./page.css"
import { compare } from "./compare.js"
import { curves } from "./curves.js"
import { ask, isServed, otherNames, readData, runName } from "./data.js"
import { h, made, moment, present } from "./dom.js"
import { heatMaps } from "./heat.js"
import { histograms } from "./histograms.js"
import { landscapes } from "./landscape.js"
import { follow, isInUse, isSame, renew } from "./live.js"
import { media } from "./media.js"
import { norms } from "./norms.js"
import { badge, overview } from "./overview.js"
import { runsTable } from "./runs.js"
import { timeline } from "./timeline.js"

// Name, title, and what makes the view of the data; with a key, it is made again only if what is there has changed.
const VIEWS = [["overview", "Overview", overview], ["compare", "Compare", compare, "compare"], ["curves", "Curves", curves, "curves"], ["heat", "Ranks by steps", heatMaps, "maps"], ["timeline", "Timeline", timeline],
  ["norms", "Norms of parameters", norms, "norms"],
  ["histograms", "Histograms", histograms, "histograms"],
  ["media", "Images, texts and sounds", media, "media"],
  ["landscape", "Loss landscape", landscapes, "landscapes"]]

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
  else if (event.key === "p") document.getElementById("live")?.click()
  else if (event.key === "/") {
    event.preventDefault()
    document.getElementById("filter")?.focus()
  }
})
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("theme")))

async function start() {
  if (!isServed) {
    const data = await readData()
    return place(header(data.overview), data)
  }
  const name = runName()
  const { data: list, version } = await ask("runs")
  const isAlone = list.runs.length === 1 && list.runs[0].name === "."
  if (name == null && !isAlone) showRuns(list, version)
  else {
    const fields = [["run", name ?? "."], ...otherNames().map((other) => ["with", other])]
    await showRun(fields, await ask("data", fields), !isAlone)
  }
}

const theme = () => h("button", { onclick: changeTheme, title: "key d" }, "dark / light")

// What shows how a served page continues: a button that stops it, and a line for what is wrong.
function following(path, fields, version, show) {
  const state = h("button", { id: "live", "aria-pressed": true, title: "key p", onclick: () => {
    state.setAttribute("aria-pressed", state.getAttribute("aria-pressed") !== "true")
    look()
  } }, "live")
  const said = h("p", { class: "alert said", role: "status" })
  const look = follow(path, fields, {
    version, show,
    isPaused: () => state.getAttribute("aria-pressed") !== "true",
    report: (error) => { said.textContent = error ? `${error.message}; this is what there was before` : "" },
  })
  return { state, said }
}

function header(run, before = null, live = {}) {
  return h("header", {}, before, h("h1", {}, run.name, " ", badge(run.state, run)), h("nav", { "aria-label": "views" }), live.state, theme(), live.said)
}

function showRun(fields, { data, version }, hasList) {
  let latest = data
  const live = following("data", fields, version, (next) => {
    latest = next ?? latest
    if (isPlaced()) update(latest)
  })
  return place(header(data.overview, hasList ? h("a", { href: "./" }, "all runs") : null, live), data)
}

const drawn = new Map() // name of a view -> its data, what it keeps, and the end of its listeners

function contentOf([name, , view], data) {
  const of = drawn.get(name) ?? { kept: {} }
  of.lifetime?.abort()
  Object.assign(of, { data, lifetime: new AbortController() })
  drawn.set(name, of)
  return present(made(of.lifetime.signal, () => view(data, of.kept)) ?? [])
}

function section([name, title], content) {
  return h("section", { id: name, tabindex: -1, "aria-label": title }, h("h2", {}, title), content)
}

const isPlaced = () => document.documentElement.dataset.ready === "true"

// The first view is painted before the others are made.
async function place(top, data) {
  const main = h("main")
  document.getElementById("app").replaceChildren(top, main, h("footer"))
  new ResizeObserver(() => { // a section that is gone to begins below the header, which is higher where it wraps
    document.documentElement.style.scrollPaddingTop = `${getComputedStyle(top).position === "sticky" ? top.offsetHeight + 12 : 8}px`
  }).observe(top)
  for (const [index, view] of VIEWS.entries()) {
    const content = contentOf(view, data)
    if (content.length) main.append(section(view, content))
    if (index === 0) {
      around(data)
      await new Promise((go) => {
        requestAnimationFrame(() => setTimeout(go))
        setTimeout(go, 100) // a tab in the background paints nothing
      })
    }
  }
  around(data)
  document.documentElement.dataset.ready = "true"
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView()
}

// The header and the footer, which change with the run and with the views that there are.
function around({ overview: run }) {
  const there = VIEWS.filter(([name]) => document.getElementById(name))
  if (there.length !== shown.length || there.some(([name], index) => name !== shown[index].name)) {
    shown = there.map(([name, title]) => ({ name, title }))
    document.querySelector("nav").replaceChildren(...shown.map(({ name, title }, index) => h("a", { href: `#${name}`, title: `key ${index + 1}` }, title)))
  }
  document.title = run.name
  document.querySelector("h1").replaceChildren(run.name, " ", badge(run.state, run))
  document.querySelector("footer").textContent = `${run.path}, as it was at ${moment(run.made)}. Keys: 1 to ${shown.length} views, / filter, d dark or light${isServed ? ", p pause" : ""}. Made by distsummary.`
}

// Show other data: each view is made again, but for those that stay the same and those in use, which follow later.
async function update(data) {
  const first = [...document.querySelectorAll("main > section")].find((one) => one.getBoundingClientRect().bottom > 80)
  const top = first?.getBoundingClientRect().top
  for (const [index, view] of VIEWS.entries()) {
    const [name, , , key] = view
    const old = document.getElementById(name)
    const before = drawn.get(name).data
    const needed = ({ overview, timeline, ...rest }) => [rest[key], timeline.starts, overview.verdicts, overview.ranks]
    if (before === data || (old && isInUse(old))) continue
    if (key && isSame(needed(before), needed(data))) {
      drawn.get(name).data = data
      continue
    }
    const content = contentOf(view, data)
    if (!content.length) old?.remove()
    else if (old) await renew(old, content)
    else {
      const next = VIEWS.slice(index + 1).map(([other]) => document.getElementById(other)).find(Boolean)
      document.querySelector("main").insertBefore(section(view, content), next ?? null)
    }
  }
  around(data)
  if (first?.isConnected) scrollBy({ top: first.getBoundingClientRect().top - top, behavior: "instant" })
}

function showRuns(list, version) {
  document.title = `${list.directory}: runs`
  const kept = {}
  const table = h("section", { id: "runs", "aria-label": "runs" }, runsTable(list, kept))
  let latest = list
  const live = following("runs", {}, version, (next) => {
    latest = next ?? latest
    if (latest === list || isInUse(table)) return
    list = latest
    renew(table, runsTable(list, kept))
  })
  document.getElementById("app").replaceChildren(
    h("header", {}, h("h1", {}, list.directory), h("nav"), live.state, theme(), live.said),
    h("main", {}, table),
    h("footer", {}, "Keys: arrows or j and k choose a run, Enter opens it, / filter, d dark or light, p pause. Made by distsummary."),
  )
  document.documentElement.dataset.ready = "true"
}

start().catch((error) => {
  document.getElementById("app").replaceChildren(h("p", { class: "alert", role: "alert" }, `This page cannot be shown: ${error.message}`))
  throw error
})
