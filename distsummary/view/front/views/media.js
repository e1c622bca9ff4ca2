// Images, texts, sounds and PR curves as they were recorded, ranks side by side, with a slider over the steps.

import { render, h as element } from "preact"
import { visible } from "../base/format"
import { Markdown } from "../base/markdown"
import { canvas, counted, css, h, number, whole } from "./dom.js"

// Tag -> the step that the reader chose; of other tags the newest is shown, also when newer ones come.
const chosen = new Map()
const enlarged = new Set() // tags and ranks whose picture is as wide as the page
// How wide a picture is at most, and up to about which size a small one is enlarged, by how many stand side by side.
const SIZES = [{ to: 1, width: 1200, box: [400, 240] }, { to: 4, width: 480, box: [300, 200] }, { to: Infinity, width: 240, box: [180, 130] }]

// Noun -> the method of a run that reads them.
const READ = { image: "images", text: "text", sound: "audio", "PR curve": "pr_curves" }

export function media({ media: data }) {
  if (!data) return []
  return [...tags(data.images, "image", picture), ...tags(data.texts, "text", text), ...tags(data.sounds, "sound", sound), ...tags(data.curves, "PR curve", curve)]
}

function tags(data, noun, shown) {
  if (!data) return []
  return [
    ...data.tags.map((one) => card(one, noun, shown)),
    data.left_out ? h("p", { class: "quiet" }, `${counted(data.left_out, "further tag")} of ${noun}s are not in this page: run.${READ[noun]}(tag)`) : null,
  ]
}

function card(one, noun, shown) {
  const count = one.steps.length
  const read = `run.${READ[noun]}(tag)`
  const ranks = one.ranks.length < one.all_ranks ? `${one.ranks.length} of ${counted(one.all_ranks, "rank")}` : one.ranks.length > 1 ? counted(one.ranks.length, "rank") : `rank ${one.ranks[0]}`
  const steps = count < one.recorded ? `${count} of ${counted(one.recorded, "step")}` : counted(count, "step")
  const others = count < one.recorded || one.ranks.length < one.all_ranks ? `; the others would make the page too large: ${read}` : ""
  const caption = h("figcaption", {}, h("span", { class: "tag" }, one.tag), h("span", { class: "quiet" }, ` ${ranks}, ${steps}${others}`),
    one.size ? h("span", { class: "alert" }, ` its ${whole(one.size)} bytes are too many for this page`) : null)
  const place = h("div", { class: "media" })
  const at = h("output")
  const name = `${noun} ${one.tag}`
  const wanted = chosen.has(name) ? one.steps.findLastIndex((step) => step <= chosen.get(name)) : count - 1
  const show = (index) => {
    at.textContent = `step ${whole(one.steps[index])}`
    slider.setAttribute("aria-valuetext", at.textContent)
    place.replaceChildren(...one.items[index].map((item, column) => {
      const label = `rank ${one.ranks[column]}`
      const content = item == null ? h("p", { class: "quiet" }, "nothing at this step")
        : item.error ? h("p", { class: "alert" }, item.error)
        : shown(item, `${one.tag}, ${label}, ${at.textContent}`, one.ranks.length)
      return h("div", {}, one.ranks.length > 1 ? h("span", { class: "quiet" }, label) : null, content)
    }))
  }
  const slider = h("input", { type: "range", min: 0, max: Math.max(0, count - 1), step: 1, value: Math.max(0, wanted), "aria-label": `step of ${one.tag}`,
    oninput: ({ isTrusted }) => {
      if (!isTrusted) { slider.value = Math.max(0, wanted); return } // a place of older data, which is another step
      const index = Number(slider.value)
      if (index === count - 1) chosen.delete(name)
      else chosen.set(name, one.steps[index])
      show(index)
    } })
  if (count) show(Math.max(0, wanted))
  return h("figure", { class: "wide" }, caption, count ? h("div", { class: "step" }, count > 1 ? slider : null, at) : null, place)
}

function picture(item, words, count) {
  const { width, box } = SIZES.find(({ to }) => count <= to)
  const image = h("img", { src: address(item, `image/${item.kind}`), alt: words, title: `${item.width} x ${item.height} pixels` })
  const scale = Math.max(1, Math.floor(Math.min(box[0] / item.width, box[1] / item.height)))
  const place = words.replace(/, step [^,]*$/, "")
  const button = h("button", { class: "link", "aria-label": `enlarge ${place}`, onclick: () => size(!enlarged.has(place)) }, image)
  const size = (isLarge) => {
    enlarged[isLarge ? "add" : "delete"](place)
    button.setAttribute("aria-expanded", `${isLarge}`)
    image.style.width = isLarge ? "100%" : `${Math.min(item.width * scale, width)}px`
    image.style.imageRendering = scale > 1 ? "pixelated" : "" // small ones keep their pixels
  }
  size(enlarged.has(place))
  image.addEventListener("error", () => button.replaceWith(h("p", { class: "alert" }, "the browser cannot read this image")))
  return button
}

function address(item, type) {
  if (!item.address) {
    let bytes = ""
    for (let from = 0; from < item.bytes.length; from += 32768) bytes += String.fromCharCode(...item.bytes.subarray(from, from + 32768))
    item.address = `data:${type};base64,${btoa(bytes)}`
  }
  return item.address
}

// Markdown as elements, or as it was recorded.
function text(item, words) {
  const written = new TextDecoder().decode(item.bytes)
  const [recorded, plain] = [visible(written), visible(written.replace(/\x1b\[[0-9;]*m/g, ""))] // without a terminal's colours
  const shown = h("div", { class: "text", tabindex: 0, role: "region", "aria-label": words })
  const put = (isSource) => (isSource ? (render(null, shown), shown.replaceChildren(h("pre", {}, recorded))) : (shown.replaceChildren(), render(element(Markdown, { text: plain }), shown)))
  put(false)
  const button = h("button", { class: "link", "aria-pressed": "false", onclick: () => {
    const isSource = button.getAttribute("aria-pressed") === "false"
    button.setAttribute("aria-pressed", `${isSource}`)
    put(isSource)
  } }, "as it was recorded")
  return [shown, /[#*_`|>\-[\\]/.test(recorded) ? button : null,
    item.cut ? h("p", { class: "quiet" }, `${counted(item.cut, "further character")} left out`) : null]
}

function sound(item, words) {
  return [h("audio", { controls: true, preload: "metadata", src: address(item, "audio/wav"), "aria-label": words }),
    item.seconds == null ? null : h("p", { class: "quiet" }, `${number(item.seconds, 3)} s`)]
}

// Precision over recall, from (0, 0) to (1, 1).
function curve(item, words, count) {
  const bytes = item.bytes.slice() // aligned for float32
  const both = new Float32Array(bytes.buffer)
  const size = both.length / 2
  const label = `${words}: precision at ${counted(size, "threshold")}, over recall`
  const { element } = canvas(220, label, (context, width, height) => {
    const [left, top, right, bottom] = [34, 8, width - 8, height - 30]
    const at = (recall, precision) => [left + recall * (right - left), bottom - precision * (bottom - top)]
    context.strokeStyle = context.fillStyle = css("--quiet")
    context.strokeRect(left, top, right - left, bottom - top)
    context.textAlign = "center"
    for (const tick of [0, 0.5, 1]) context.fillText(tick, at(tick, 0)[0], bottom + 14)
    context.fillText("recall", (left + right) / 2, bottom + 26)
    context.textAlign = "right"
    for (const tick of [0, 0.5, 1]) context.fillText(tick, left - 4, at(0, tick)[1] + 4)
    context.strokeStyle = css("--blue")
    context.lineWidth = 2
    context.beginPath()
    let isDrawn = false
    for (let index = 0; index < size; index++) {
      const [precision, recall] = [both[index], both[size + index]]
      if (precision === 0 && recall === 0) continue // at this threshold nothing is found
      context[isDrawn ? "lineTo" : "moveTo"](...at(recall, precision))
      isDrawn = true
    }
    context.stroke()
  })
  element.style.width = `${Math.min(300, SIZES.find(({ to }) => count <= to).width)}px`
  return element
}
