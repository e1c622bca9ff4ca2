// Numbers, times and names as people read them; the same on all pages.

export function number(value: number | null | undefined, digits = 5): string {
  if (value == null) return "-"
  if (Number.isNaN(value)) return "NaN"
  if (!Number.isFinite(value)) return value > 0 ? "infinite" : "-infinite"
  const size = Math.abs(value)
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return value.toExponential(Math.max(0, digits - 2)).replace(/\.?0+e/, "e").replace("e+", "e")
  return Number(value.toPrecision(digits)).toLocaleString("en-US", { maximumFractionDigits: 10 })
}

// A value of the config or the like, as it was given: a seed is not rounded, and two that differ look different. Of
// a float32, as lineage has them, the shortest text that gives it again: 0.05, not 0.0500000007450581.
export function given(value: unknown): string {
  if (value == null) return "-"
  if (typeof value !== "number" || Number.isInteger(value) || Math.fround(value) !== value) return String(value)
  let digits = 1
  while (Math.fround(Number(value.toPrecision(digits))) !== value) digits++
  return String(Number(value.toPrecision(digits)))
}

// A recorded text without a character that does anything: control characters and those that turn the direction of
// writing are shown by their codes, as a terminal is given them; line ends stay.
export const visible = (text: string): string => text.replace(/(?![\t\n])[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]/g, (one) => {
  const code = one.charCodeAt(0).toString(16)
  return code.length > 2 ? `\\u${code}` : `\\x${code.padStart(2, "0")}`
})

// The ticks of an axis, as short as they can be distinguished.
export function ticksSaid(ticks: (number | null)[]): string[] {
  const shown = ticks.filter((tick) => tick != null)
  const largest = Math.max(...shown.map(Math.abs))
  const apart = Math.min(...shown.slice(1).map((tick, index) => Math.abs(tick - shown[index])))
  const digits = apart > 0 && Number.isFinite(apart) ? Math.min(12, Math.max(3, Math.ceil(Math.log10(largest / apart)) + 1)) : 4
  return ticks.map((tick) => {
    if (tick == null) return ""
    const rounded = Number(tick.toPrecision(digits))
    const size = Math.abs(rounded)
    return size !== 0 && (size < 1e-4 || size >= 1e7) ? rounded.toExponential().replace("e+", "e") : number(rounded, 12)
  })
}

export const whole = (value: number): string => Math.round(value).toLocaleString("en-US")

export const counted = (count: number, noun: string): string => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`

export const moment = (seconds: number): string => new Date(seconds * 1000).toLocaleString("sv-SE") // 2026-01-31 12:00:00

export function lasting(seconds: number): string {
  if (seconds < 120) return `${number(seconds, seconds < 10 ? 2 : 3)} s`
  const rounded = Math.round(seconds)
  if (rounded < 7200) return `${Math.floor(rounded / 60)} min${rounded % 60 ? ` ${rounded % 60} s` : ""}`
  return `${number(seconds / 3600, 3)} h`
}

// A time that was measured in milliseconds, in the unit that fits it.
export const milliseconds = (value: number): string => (value >= 1000 ? `${number(value / 1000, 3)} s` : `${number(value, 3)} ms`)

export const withUnit = (value: number | null, unit: string, digits = 4): string => (unit === "ms" && value != null && Number.isFinite(value) ? milliseconds(value) : `${number(value, digits)}${unit && value != null ? ` ${unit}` : ""}`)

export const percent = (part: number): string => `${part >= 0.1 || part === 0 ? Math.round(100 * part) : number(100 * part, 1)} %`

// Ranks in words, runs of three or more as a range: 0, 2, 5 to 7.
export function ranges(ranks: ArrayLike<number>): string {
  const parts: string[] = []
  for (let at = 0; at < ranks.length; ) {
    let end = at
    while (end + 1 < ranks.length && ranks[end + 1] === ranks[end] + 1) end++
    if (end - at >= 2) parts.push(`${ranks[at]} to ${ranks[end]}`)
    else for (let one = at; one <= end; one++) parts.push(`${ranks[one]}`)
    at = end + 1
  }
  return parts.length > 8 ? `${parts.slice(0, 8).join(", ")} and more` : parts.join(", ")
}

// A round distance between ticks, so that there are about `count` of them from `low` to `high`.
export function tickDistance(low: number, high: number, count: number, least = 0): number {
  const rough = Math.max((high - low) / Math.max(1, count), least, Number.MIN_VALUE)
  const power = 10 ** Math.floor(Math.log10(rough))
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough) ?? 10 * power
}

// The first thing that a cause's page says to do, in Markdown; "" if it has no such list.
// The first advice of a guide; what begins with "At the line" is for evidence that names one.
export function firstAdvice(guide: string, evidence: string): string {
  const list = /## What to do\n+([\s\S]*?)(?=\n\n|$)/.exec(guide)?.[1] ?? ""
  const all = list.split(/^\d+\. /m).slice(1).map((one) => one.replace(/\s+/g, " ").trim())
  const isNamed = /\S:\d+\b/.test(evidence)
  return all.find((one) => isNamed || !one.startsWith("At the line")) ?? all[0] ?? ""
}
