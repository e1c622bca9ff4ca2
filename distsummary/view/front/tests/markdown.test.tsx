// Markdown becomes elements; what a run recorded brings no HTML, no address to load, no link to follow.

import { expect, test } from "vitest"
import MarkdownIt from "markdown-it"
import { elements } from "../base/markdown"

const names = (children: unknown[]): unknown[] => children.map((child) => (typeof child === "object" && child ? [(child as { type: string }).type, ...names([(child as { props: { children?: unknown } }).props.children].flat())] : child)).filter((one) => one != null && one !== "")
const made = (text: string) => names(elements(new MarkdownIt({ html: false }).parse(text, {}) as never))

test("headings, lists, code and tables are elements", () => {
  expect(made("# Title\n\n- a `b`\n")).toEqual([["h1", "Title"], ["ul", ["li", ["p", "a ", ["code", "b"]]]]])
})
test.each(["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<b>x</b>", "![x](http://a/b.png)", "[x](javascript:alert(1))", "[x](http://a)"])("%s is no HTML", (text) => {
  const found = JSON.stringify(made(text))
  expect(found).not.toMatch(/"(script|img|b|a)"/)
  expect(found).not.toContain("href")
})
