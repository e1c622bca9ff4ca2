// A page that is served follows its run: its data are asked for again and again.

import { signal } from "@preact/signals"
import { ask, type Fields } from "./source"

const EVERY_MS = 3000
const SLOWEST_MS = 30000 // after failures

export const isPaused = signal(false)

// Calls `show` with the data when there are others (it may return after how many milliseconds to ask again), and `report` with null or with the error that came instead of
// them. Nothing is asked for while the page is hidden or paused.
export function follow<T>(path: string, fields: Fields, first: string | null, show: (data: T) => number | void, report: (error: Error | null) => void): void {
  let version = first
  let timer: ReturnType<typeof setTimeout> | undefined
  let failures = 0
  let isAsking = false
  const look = async () => {
    clearTimeout(timer)
    if (isAsking || document.hidden || isPaused.value) return
    isAsking = true
    let soon: number | null = null
    try {
      const answer = await ask<T>(path, fields, version)
      version = answer.version
      failures = 0
      report(null)
      if (answer.data) soon = show(answer.data) ?? null
    } catch (error) {
      failures += 1
      report(error as Error)
    } finally {
      isAsking = false
    }
    timer = setTimeout(look, soon ?? Math.min(EVERY_MS * 2 ** failures, SLOWEST_MS))
  }
  document.addEventListener("visibilitychange", () => document.hidden || look())
  isPaused.subscribe((paused) => paused || look())
}
