// The whole state of a page is in the hash of its URL, so that a link shows what its sender saw.

import { computed, signal } from "@preact/signals"

export const ROUTES = ["answer", "compare", "metrics", "ranks", "model", "media", "landscape", "system", "config", "runs"] as const
export type Route = (typeof ROUTES)[number]

type Values = Record<string, string>
const DEFAULTS: Values = { x: "step", smooth: "0", log: "auto" }

export function parsed(hash: string): { route: Route; values: Values } {
  const [name, query = ""] = hash.replace(/^#/, "").split("?")
  const route = ROUTES.find((one) => one === name) ?? "answer"
  return { route, values: Object.fromEntries(new URLSearchParams(query)) }
}

export function written(route: Route, values: Values): string {
  const kept = Object.entries(values).filter(([name, value]) => value !== "" && value !== DEFAULTS[name])
  return `#${route}${kept.length ? `?${new URLSearchParams(kept)}` : ""}`
}

const state = signal(parsed(location.hash))
addEventListener("hashchange", () => { state.value = parsed(location.hash) })

export const route = computed(() => state.value.route)

// What stays when another page of the run is opened: how its axes are cut and which ranks are chosen.
const SHARED = ["x", "zoom", "ranks", "smooth", "log"]
export const linkTo = (to: Route, more: Values = {}): string =>
  written(to, { ...Object.fromEntries(Object.entries(state.value.values).filter(([name]) => SHARED.includes(name))), ...more })

// The page of many runs has this route from its beginning.
export function begin(route: Route): void {
  state.value = { ...state.value, route }
}

export function go(to: Route, more: Values = {}): void {
  location.hash = linkTo(to, more)
  state.value = parsed(location.hash)
}

export function put(changes: Record<string, string | number | null>): void {
  const values = { ...state.value.values }
  for (const [name, value] of Object.entries(changes)) {
    if (value == null || value === "") delete values[name]
    else values[name] = String(value)
  }
  state.value = { route: state.value.route, values }
  history.replaceState(null, "", location.search + written(state.value.route, values))
}

export const text = (name: string) => computed(() => state.value.values[name] ?? DEFAULTS[name] ?? "")
export const list = (name: string) => {
  const written = text(name)
  return computed(() => (written.value ? written.value.split("\u0001") : []))
}
const number = (name: string) => {
  const written = text(name)
  return computed(() => (written.value === "" || Number.isNaN(Number(written.value)) ? null : Number(written.value)))
}

export const axisKind = text("x")
export const search = text("q")
export const group = text("group")
export const smoothing = computed(() => Math.min(0.99, Math.max(0, Number(text("smooth").value) || 0)))
export const logKind = text("log")
export const pins = list("pins")
export const chosenStep = number("step")
export const chosenRank = number("rank")
export const chosenMap = text("map")
export const item = text("item")
export const tab = text("tab")
const zoomed = text("zoom")
export const zoom = computed<[number, number] | null>(() => {
  const [from, to] = zoomed.value.split("_").map(Number)
  return Number.isFinite(from) && Number.isFinite(to) && from < to ? [from, to] : null
})
const ranked = text("ranks")
export const ranks = computed(() => ranked.value.split(",").filter((one) => /^\d+$/.test(one)).map(Number))

export const putZoom = (range: [number, number] | null): void => put({ zoom: range ? range.map((one) => (range[1] - range[0] > 10 ? Math.round(one) : Number(one.toPrecision(9)))).join("_") : null })
export const putRanks = (chosen: number[]): void => put({ ranks: chosen.join(",") })
export const putPins = (tags: string[]): void => put({ pins: tags.join("\u0001") })
