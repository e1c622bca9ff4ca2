// Markdown as elements: the tokens of markdown-it become elements here, so that no HTML of a user reaches the page.

import MarkdownIt from "markdown-it"
import { h, type VNode } from "preact"

const parser = new MarkdownIt({ html: false, linkify: false })
const TAGS = new Set(["p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code", "em", "strong", "s", "table", "thead", "tbody", "tr", "th", "td", "hr", "br"])

type Child = VNode | string
interface Token { type: string; tag: string; nesting: number; content: string; children: Token[] | null; attrGet(name: string): string | null }

// Links are texts with their address: a recorded text must not lead anywhere by one click, and a page is one file.
export function Markdown({ text }: { text: string }) {
  return <div class="markdown">{elements(parser.parse(text, {}) as unknown as Token[])}</div>
}

export function elements(tokens: Token[]): Child[] {
  const stack: { tag: string; children: Child[]; more: string }[] = [{ tag: "", children: [], more: "" }]
  const put = (child: Child) => stack[stack.length - 1].children.push(child)
  for (const token of tokens) {
    if (token.type === "inline") elements(token.children ?? []).forEach(put)
    else if (token.type === "text") put(token.content)
    else if (token.type === "softbreak") put(" ")
    else if (token.type === "hardbreak") put(<br />)
    else if (token.type === "code_inline") put(<code>{token.content}</code>)
    else if (token.type === "fence" || token.type === "code_block") put(<pre tabIndex={0}><code>{token.content}</code></pre>)
    else if (token.type === "image") put(`[picture: ${token.content}]`)
    else if (token.nesting === 1) {
      const address = token.tag === "a" ? token.attrGet("href") ?? "" : ""
      stack.push({ tag: token.tag, children: [], more: /^https?:/.test(address) ? ` (${address})` : "" })
    } else if (token.nesting === -1) {
      const { tag, children, more } = stack.pop()!
      put(h(TAGS.has(tag) ? tag : "span", {}, ...children, more))
    } else if (TAGS.has(token.tag)) put(h(token.tag, {}))
    else put(token.content)
  }
  return stack[0].children
}
