// The page's data: a JSON text whose arrays lie in a block of bytes, as view/packing.py wrote them.

const TYPES = { f4: Float32Array, f8: Float64Array, i4: Int32Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array }

export async function readData() {
  const bytes = Uint8Array.from(atob(document.getElementById("block").textContent.trim()), (c) => c.charCodeAt(0))
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))
  const block = new Uint8Array(await new Response(stream).arrayBuffer())
  return JSON.parse(document.getElementById("data").textContent, (key, value) =>
    Array.isArray(value?.$) ? unpacked(block, ...value.$) : value,
  )
}

function unpacked(block, kind, place, count) {
  const Type = TYPES[kind]
  const size = Type.BYTES_PER_ELEMENT
  const bytes = new Uint8Array(count * size)
  for (let byte = 0; byte < size; byte++) {
    const from = place + byte * count
    for (let number = 0; number < count; number++) bytes[number * size + byte] = block[from + number]
  }
  return new Type(bytes.buffer)
}
