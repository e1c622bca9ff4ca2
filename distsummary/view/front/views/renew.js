// A view that is made of elements at once, such as a landscape, is made again when its data change: what the reader
// chose in it stays.

import { present } from "./dom.js"

const TYPING_MS = 5000 // for so long after a key, what it was for stays

const pointer = { x: 0, y: 0, isDown: false }
let typed = { section: null, at: -Infinity }
for (const name of ["pointermove", "pointerdown", "pointerup", "pointercancel"]) {
  addEventListener(name, (event) => {
    if (event.isTrusted) Object.assign(pointer, { x: event.clientX, y: event.clientY, isDown: event.buttons > 0 })
  }, { capture: true, passive: true })
}
addEventListener("keydown", (event) => { typed = { section: event.target.closest?.("[data-view]"), at: event.timeStamp } }, { capture: true })

// Whether the reader is about to do something in a section: presses a button, works it by keys, or has text selected.
export function isInUse(section) {
  const selected = getSelection()
  return (pointer.isDown && section.matches(":hover"))
    || (typed.section === section && performance.now() - typed.at < TYPING_MS)
    || (!selected.isCollapsed && section.contains(selected.anchorNode))
}

const CONTROLS = "input, select, button[aria-pressed]"

function nameOf(element) {
  const label = element.closest("label")
  const words = label ? [...label.childNodes].filter((one) => one.nodeType === Node.TEXT_NODE).map((one) => one.data).join("") : element.textContent
  return [element.tagName, element.type, element.id, element.name, element.getAttribute("aria-label") ?? words, element.type === "radio" ? element.value : ""].join("|")
}

// Name -> the elements of this name, in their order.
function byName(elements) {
  const found = new Map()
  for (const one of elements) found.set(nameOf(one), [...(found.get(nameOf(one)) ?? []), one])
  return found
}

// Put other elements into a section. What was chosen in it is chosen in them: controls, what is open,
// how far tables are scrolled, the focus, and what the pointer is at.
export async function renew(section, elements) {
  const old = [...section.children]
  const all = (selector) => [...section.querySelectorAll(selector)]
  const isOver = section.matches(":hover")
  const before = { controls: byName(all(CONTROLS)), open: all("details").map((one) => one.open), scroll: all(".scroll").map((one) => [one.scrollLeft, one.scrollTop]) }
  const focused = section.contains(document.activeElement) && document.activeElement !== section ? document.activeElement : null
  const place = focused && byName(all(focused.tagName)).get(nameOf(focused)).indexOf(focused)
  const cursor = focused?.type === "search" ? [focused.selectionStart, focused.selectionEnd] : null
  old.forEach((one) => one.remove())
  section.append(...present(elements))
  for (const [name, found] of byName(all(CONTROLS))) found.forEach((one, index) => put(one, before.controls.get(name)?.[index]))
  const details = all("details")
  if (details.length === before.open.length) details.forEach((one, index) => { one.open = before.open[index] })
  await null // what is drawn after it was placed
  all(".scroll").forEach((one, index) => one.scrollTo(...(before.scroll[index] ?? [0, 0])))
  if (focused) {
    const again = byName(all(focused.tagName)).get(nameOf(focused)) ?? []
    const next = again[place] ?? again[0] ?? section
    next.focus({ preventScroll: true })
    if (cursor && next !== section) next.setSelectionRange(...cursor)
  }
  if (isOver) pointAgain()
}

function put(control, old) {
  if (!old) return
  if (control.type === "checkbox" || control.type === "radio") {
    if (control.checked !== old.checked && (old.checked || control.type === "checkbox")) control.click()
  } else if (control.tagName === "BUTTON") {
    if (control.getAttribute("aria-pressed") !== old.getAttribute("aria-pressed")) control.click()
  } else if (control.value !== old.value) {
    control.value = old.value
    for (const name of ["input", "change"]) control.dispatchEvent(new Event(name, { bubbles: true }))
  }
}

// Notify what lies under the pointer, as if the pointer had moved.
function pointAgain() {
  requestAnimationFrame(() => {
    const at = { clientX: pointer.x, clientY: pointer.y, movementX: 1, bubbles: true }
    const found = document.elementFromPoint(pointer.x, pointer.y)
    found?.dispatchEvent(new PointerEvent("pointermove", at))
    found?.dispatchEvent(new MouseEvent("mouseenter", { ...at, bubbles: false }))
    found?.dispatchEvent(new MouseEvent("mousemove", at))
  })
}

// Whether two values of a page's data are the same.
export function isSame(a, b) {
  if (Object.is(a, b)) return true
  if (typeof a !== "object" || typeof b !== "object" || a == null || b == null || a.constructor !== b.constructor) return false
  if (ArrayBuffer.isView(a)) return a.length === b.length && a.every((value, index) => Object.is(value, b[index]))
  const keys = Object.keys(a)
  return keys.length === Object.keys(b).length && keys.every((key) => isSame(a[key], b[key]))
}
