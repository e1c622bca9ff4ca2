// The page of a run, or of a server's runs; see pages/shell.tsx for what it shows.

import "uplot/dist/uPlot.min.css"
import "./page.css"
import { render } from "preact"
import { follow, isPaused } from "./base/follow"
import { whole } from "./base/format"
import { begin, go } from "./base/hash"
import { ask, groupedBy, isServed, otherNames, readData, runName, type Fields } from "./base/source"
import { changeTheme, data, said } from "./base/store"
import type { Page } from "./base/types"
import { pagesOfRun, Shell } from "./pages/shell"
import { type Listing } from "./runs/columns"
import { canEdit, followFilter, listing, Runs } from "./runs/page"

const SOON_MS = 300 // while not all rows are whole
const app = document.getElementById("app")!

function say(text: string): void {
  if (document.documentElement.dataset.ready) return // an answer that came late
  const line = document.createElement("p")
  line.className = "card"
  line.setAttribute("role", "alert")
  line.textContent = text
  app.replaceChildren(line)
}

interface Progress { text: string; done: number; total: number }

const progressSaid = ({ text, done, total }: Progress): string => `${text || "looking at its files"}${total ? ` ${whole(done)} of ${whole(total)}` : done ? ` ${whole(done)}` : ""} ...`

function show(page: Page, hasList: boolean): void {
  data.value = page
  document.title = page.overview.name
  // Who asks for several runs looks at what differs, not at the first of them.
  if (page.compare && !location.hash) begin("compare")
  app.replaceChildren()
  render(<Shell hasList={hasList} />, app)
  document.documentElement.dataset.ready = "true"
}

async function showRuns(first: Listing, version: string | null): Promise<void> {
  begin("runs")
  canEdit.value = (await ask<boolean>("edit")).data!
  listing.value = first
  document.title = `${first.directory}: runs`
  app.replaceChildren()
  followFilter()
  render(<Runs />, app)
  document.documentElement.dataset.ready = "true"
  const shown = (list: Listing): number | void => { listing.value = list; return list.pending ? SOON_MS : undefined }
  follow<Listing>("runs", {}, first.pending ? null : version, shown, (error) => { said.value = error ? `${error.message}; this is what there was before` : "" })
}

async function start(): Promise<void> {
  if (!isServed) return show(await readData(), false)
  const name = runName()
  if (name == null) {
    const { data: list, version } = await ask<Listing>("runs")
    if (list!.columns.path?.length !== 1 || list!.columns.path[0] !== ".") return showRuns(list!, version)
  }
  const fields: Fields = [["run", name ?? "."], ...otherNames().map((other) => ["with", other]), ...groupedBy().map((column) => ["by", column])]
  const waiting = setInterval(() => ask<Progress>("progress").then(({ data: now }) => say(`Reading ${name ?? "the run"}: ${progressSaid(now!)}`), () => {}), 700)
  const answer = await ask<Page>("data", fields).finally(() => clearInterval(waiting))
  show(answer.data!, name != null && name !== ".")
  follow<Page>("data", fields, answer.version, (next) => { data.value = next }, (error) => { said.value = error ? `${error.message}; this is what there was before` : "" })
}

document.addEventListener("keydown", (event) => {
  const target = event.target as HTMLElement
  if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|TEXTAREA|SELECT/.test(target.tagName)) return
  const page = data.value ? pagesOfRun()[Number(event.key) - 1] : undefined
  if (page) go(page.name)
  else if (event.key === "d") changeTheme()
  else if (event.key === "p" && isServed) isPaused.value = !isPaused.value
  else if (event.key === "/") {
    event.preventDefault()
    const field = document.getElementById("filter")
    field?.focus() // at once: what is typed next belongs into it
    if (field || !data.value) return
    go("metrics")
    requestAnimationFrame(() => document.getElementById("filter")?.focus())
  }
})

start().catch((error: Error) => {
  say(`This page cannot be shown: ${error.message}`)
  throw error
})
