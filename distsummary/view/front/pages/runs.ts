// The list of the runs below a directory, which follows them.

import { follow, isPaused } from "../base/follow"
import { changeTheme } from "../base/store"
import { h } from "../views/dom.js"
import { isInUse, renew } from "../views/renew.js"
import { runsTable } from "../views/runs.js"

export interface Listing { directory: string; runs: { name: string }[]; note: string }

export function showRuns(app: HTMLElement, first: Listing, version: string | null): void {
  document.title = `${first.directory}: runs`
  const kept = {}
  const table = h("section", { id: "runs", "data-view": "runs", "aria-label": "runs" }, runsTable(first, kept))
  const state = h("button", { id: "live", title: "key p", onclick: () => { isPaused.value = !isPaused.value } }, "live")
  isPaused.subscribe((paused) => state.setAttribute("aria-pressed", `${!paused}`))
  const said = h("p", { class: "said", role: "status" })
  let waiting: ReturnType<typeof setTimeout> | undefined
  const update = (list: Listing): void => {
    clearTimeout(waiting)
    if (isInUse(table)) waiting = setTimeout(() => update(list), 1000)
    else renew(table, runsTable(list, kept))
  }
  app.replaceChildren(h("div", { class: "page list" },
    h("header", {}, h("h1", {}, first.directory), h("span", { class: "end" }, state, h("button", { onclick: changeTheme, title: "key d", "aria-label": "dark or light" }, "◐")), said),
    h("main", {}, table),
    h("footer", {}, "Keys: arrows or j and k choose a run, Enter opens it, / filter, d dark or light, p pause. Made by distsummary.")))
  document.documentElement.dataset.ready = "true"
  follow<Listing>("runs", {}, version, update, (error) => { said.textContent = error ? `${error.message}; this is what there was before` : "" })
}
