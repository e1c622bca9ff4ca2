// Where the page's data come from: they stand in the file that `distsummary report` wrote, or the server of
// `distsummary serve` has them. Both are a JSON text whose arrays lie in a block of bytes, see view/packing.py.

import { visible } from "./format"
import type { Anatomy, Curve, Numbers, Page, RankLine } from "./types"

const TYPES = { f4: Float32Array, f8: Float64Array, i4: Int32Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array }

export const isServed = !document.getElementById("data")

export interface Answered<T> { data: T | null; version: string | null }
export type Fields = Record<string, string> | string[][]

// The data that stand in this file.
export async function readData(): Promise<Page> {
  const bytes = Uint8Array.from(atob(document.getElementById("block")!.textContent!.trim()), (c) => c.charCodeAt(0))
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))
  return unpacked(document.getElementById("data")!.textContent!, new Uint8Array(await new Response(stream).arrayBuffer()))
}

// The run that this page shows, as the list names it; null on the list itself.
export const runName = (): string | null => new URLSearchParams(location.search).get("run")

// The runs that this page shows next to it.
export const otherNames = (): string[] => new URLSearchParams(location.search).getAll("with")

// The columns by which these runs are grouped.
export const groupedBy = (): string[] => new URLSearchParams(location.search).getAll("by")

export class Refused extends Error {
  constructor(message: string, readonly status: number) { super(message) }
}

// What the server answers; `data` is null if it is still that of the given version.
export async function ask<T>(path: string, fields: Fields = {}, version: string | null = null): Promise<Answered<T>> {
  let answer
  try {
    answer = await fetch(`${path}?${new URLSearchParams(fields)}`, { cache: "no-store", headers: version ? { "If-None-Match": version } : {} })
  } catch {
    throw new Error("the server does not answer; it was ended, or the connection to it")
  }
  if (answer.status === 304) return { data: null, version }
  if (!answer.ok) throw new Refused((await answer.text()) || `the server answers ${answer.status}`, answer.status)
  const known = answer.headers.get("ETag")
  if (answer.headers.get("Content-Type") === "application/json") return { version: known, data: await answer.json() }
  const bytes = new Uint8Array(await answer.arrayBuffer())
  const start = 4 + new DataView(bytes.buffer).getUint32(0, true)
  return { version: known, data: unpacked(new TextDecoder().decode(bytes.subarray(4, start)), bytes.subarray(start)) }
}

// Changes something on the server.
export async function send(path: string, fields: Fields, changes: unknown): Promise<void> {
  const answer = await fetch(`${path}?${new URLSearchParams(fields)}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(changes) })
  if (!answer.ok) throw new Refused((await answer.text()) || `the server answers ${answer.status}`, answer.status)
}

// A curve that the page does not hold: a tag of all ranks together, or of one rank.
export const askTag = (tag: string): Promise<Curve> => ask<Curve>("curve", { run: runName() ?? ".", tag: recorded(tag) }).then((answer) => answer.data!)
export const askRank = (tag: string, rank: number): Promise<RankLine> =>
  ask<RankLine>("curve", { run: runName() ?? ".", tag: recorded(tag), rank: `${rank}` }).then((answer) => answer.data!)

// A name as it was before its control characters were made visible.
const recorded = (name: string): string => name.replace(/\\x([0-9a-f]{2})|\\u([0-9a-f]{4})/g, (_, short, long) => String.fromCharCode(parseInt(short ?? long, 16)))

// Where each rank spent a measured step that the page does not hold.
export const askStep = (step: number, rank: number | null): Promise<Anatomy | null> =>
  ask<{ anatomy: Anatomy | null }>("step", { run: runName() ?? ".", step: `${step}`, ...(rank == null ? {} : { rank: `${rank}` }) }).then((answer) => answer.data!.anatomy)

export function unpacked<T>(text: string, block: Uint8Array): T {
  return JSON.parse(text, (_, value) => (typeof value === "string" ? visible(value) : Array.isArray(value?.$) ? numbers(block, value.$[0], value.$[1], value.$[2]) : value))
}

function numbers(block: Uint8Array, kind: keyof typeof TYPES, place: number, count: number): Numbers {
  const Type = TYPES[kind]
  const size = Type.BYTES_PER_ELEMENT
  const bytes = new Uint8Array(count * size)
  for (let byte = 0; byte < size; byte++) {
    const from = place + byte * count
    for (let at = 0; at < count; at++) bytes[at * size + byte] = block[from + at]
  }
  return new Type(bytes.buffer)
}
