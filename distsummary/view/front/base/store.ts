// What all parts of the page share: the data of the run, where the pointer is, the theme.

import { computed, signal } from "@preact/signals"
import { axisKind } from "./hash"
import { makeAxis } from "./axis"
import type { Page } from "./types"

export const data = signal<Page>(null as unknown as Page) // set before anything is drawn
export const hovered = signal<number | null>(null) // the step at the crosshair
export const said = signal("") // why a served page does not follow its run
export const theme = signal(0) // another number when the colours are others

export const axis = computed(() => makeAxis(data.value.marks, axisKind.value))
export const isAlone = computed(() => data.value.overview.ranks.length <= 1)
// How long the run took so far: as its bill has it, so that costs are a part of the same whole.
export const lasted = computed(() => data.value.cost?.wall_s || data.value.overview.lasted_s)
// The rank that holds up or broke the run, which has one colour on all pages.
export const culprit = computed(() => data.value.overview.verdicts[0]?.rank ?? null)

const dark = matchMedia("(prefers-color-scheme: dark)")
export const isDark = (): boolean => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark"
function changed(): void {
  theme.value++
  document.dispatchEvent(new Event("theme")) // for what is drawn outside of Preact
}
export function changeTheme(): void {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark"
  changed()
}
dark.addEventListener("change", changed)

// In TensorBoard's tab, the page is as dark as TensorBoard.
function followTensorBoard(): void {
  if (parent === window || !parent.document.querySelector("tb-webapp")) return
  const body = parent.document.body
  const follow = (): void => {
    document.documentElement.dataset.theme = body.classList.contains("dark-mode") ? "dark" : "light"
    changed()
  }
  new MutationObserver(follow).observe(body, { attributeFilter: ["class"] })
  follow()
}
try {
  followTensorBoard()
} catch (error) {
  if (!(error instanceof DOMException)) throw error // a frame of a page of others, which may not be read
}

export const css = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim()
