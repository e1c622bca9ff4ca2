// Where the page's data come from: they stand in the file that `distsummary report` wrote, or the server of
// `distsummary serve` has them. Both are a JSON text whose arrays lie in a block of bytes, see view/packing.py.

const TYPES = { f4: Float32Array, f8: Float64Array, i4: Int32Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array }

export const isServed = !document.getElementById("data")

// The data that stand in this file.
export async function readData() {
  const bytes = Uint8Array.from(atob(document.getElementById("block").textContent.trim()), (c) => c.charCodeAt(0))
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))
  return unpacked(document.getElementById("data").textContent, new Uint8Array(await new Response(stream).arrayBuffer()))
}

// The run that this page shows, as the list names it; null on the list itself.
export const runName = () => new URLSearchParams(location.search).get("run")

// The runs that this page shows next to it.
export const otherNames = () => new URLSearchParams(location.search).getAll("with")

// What the server answers: { data, version }; `data` is null if it is still that of the given version.
export async function ask(path, fields = {}, version = null) {
  let answer
  try {
    const query = new URLSearchParams(fields)
    answer = await fetch(`${path}?${query}`, { cache: "no-store", headers: version ? { "If-None-Match": version } : {} })
  } catch {
    throw new Error("the server does not answer; it was ended, or the connection to it")
  }
  if (answer.status === 304) return { data: null, version }
  if (!answer.ok) {
    throw Object.assign(new Error((await answer.text()) || `the server answers ${answer.status}`), { status: answer.status })
  }
  const found = { version: answer.headers.get("ETag") }
  if (answer.headers.get("Content-Type") === "application/json") return { ...found, data: await answer.json() }
  const bytes = new Uint8Array(await answer.arrayBuffer())
  const start = 4 + new DataView(bytes.buffer).getUint32(0, true)
  return { ...found, data: unpacked(new TextDecoder().decode(bytes.subarray(4, start)), bytes.subarray(start)) }
}

// The curve of one rank, { rank, steps, values }, as a promise; null in a file, which has no others than its own.
export const rankCurve = (tag, rank) => (isServed ? ask("curve", { run: runName() ?? ".", tag, rank }).then((answer) => answer.data) : null)

function unpacked(text, block) {
  return JSON.parse(text, (key, value) => (Array.isArray(value?.$) ? numbers(block, ...value.$) : value))
}

function numbers(block, kind, place, count) {
  const Type = TYPES[kind]
  const size = Type.BYTES_PER_ELEMENT
  const bytes = new Uint8Array(count * size)
  for (let byte = 0; byte < size; byte++) {
    const from = place + byte * count
    for (let number = 0; number < count; number++) bytes[number * size + byte] = block[from + number]
  }
  return new Type(bytes.buffer)
}
