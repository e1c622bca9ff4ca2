// A chart as a file: its points as CSV, its lines as SVG, its picture as PNG.

import { css } from "../base/store"
import { withoutOutliers, type Drawn } from "./series"

export interface Source { name: string; unit: string; lines: Drawn[] }

export function save(name: string, type: string, content: string | Blob): void {
  const link = document.createElement("a")
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }))
  link.download = name.replace(/[^\w.-]+/g, "_").slice(-120)
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 1000)
}

export function asPng(canvas: HTMLCanvasElement, name: string): void {
  const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height + 28 * devicePixelRatio })
  const context = copy.getContext("2d")!
  context.fillStyle = css("--card")
  context.fillRect(0, 0, copy.width, copy.height)
  context.fillStyle = css("--text")
  context.font = `600 ${13 * devicePixelRatio}px ${css("--font")}`
  context.fillText(name, 8 * devicePixelRatio, 18 * devicePixelRatio)
  context.drawImage(canvas, 0, 28 * devicePixelRatio)
  copy.toBlob((blob) => blob && save(`${name}.png`, "image/png", blob))
}

const quoted = (text: string) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text)

// A row for each point: step, line, value. A text that begins like a formula is none for a spreadsheet.
export function asCsv({ name, unit, lines }: Source): string {
  const rows = lines.flatMap((line) => Array.from(line.steps, (step, at) => `${step},${quoted(`'${line.label || name}`.replace(/^'(?![=+\-@\t])/, ""))},${line.values[at]}`))
  return [`step,line,${quoted(unit ? `value (${unit})` : "value")}`, ...rows, ""].join("\n")
}

const escaped = (text: string) => text.replace(/[<>&"']/g, (one) => `&#${one.charCodeAt(0)};`)

export function asSvg({ name, unit, lines }: Source): string {
  const [width, height, left, top, bottom] = [720, 320, 64, 32, 288]
  const points = lines.flatMap((line) => Array.from(line.values).filter(Number.isFinite))
  const steps = lines.flatMap((line) => Array.from(line.steps))
  const [first, last] = [Math.min(...extremes(steps)), Math.max(...extremes(steps))]
  const [low, high] = withoutOutliers(points) ?? [Math.min(...extremes(points)), Math.max(...extremes(points))]
  const x = (step: number) => left + ((step - first) / (last - first || 1)) * (width - left - 16)
  const y = (value: number) => bottom - ((value - low) / (high - low || 1)) * (bottom - top)
  const paths = lines.map((line) => {
    const drawn = Array.from(line.steps, (step, at) => [step, line.values[at]]).filter(([, value]) => Number.isFinite(value))
    return `<polyline fill="none" stroke="${escaped(css(line.color))}" stroke-width="${line.width}" points="${drawn.map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" ")}"><title>${escaped(line.label)}</title></polyline>`
  })
  const text = (at: number, across: number, anchor: string, said: string) => `<text x="${at}" y="${across}" text-anchor="${anchor}" font-family="sans-serif" font-size="12">${escaped(said)}</text>`
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}"><rect width="${width}" height="${height}" fill="#fff"/>${text(left, 18, "start", name)}
${text(left - 6, top + 8, "end", `${high.toPrecision(3)} ${unit}`)}${text(left - 6, bottom, "end", low.toPrecision(3))}${text(left, 308, "start", `step ${first}`)}${text(width - 16, 308, "end", `${last}`)}
${paths.join("\n")}</svg>`
}

// Two numbers that have the lowest and the highest of all; a call with all of them would be too long.
function extremes(values: number[]): [number, number] {
  return values.reduce<[number, number]>(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity])
}
