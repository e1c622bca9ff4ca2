// Tags as a tree by their prefixes, the user's first and those of distsummary last: pure, without a page.

export interface Branch { name: string; prefix: string; tags: string[]; children: Branch[]; isOwn: boolean }

const OWN = "zz_"
export const isOwn = (tag: string): boolean => tag.startsWith(OWN)

// The branches of tags in their order; a tag without a prefix is in the first one, whose prefix is "".
export function treeOf(tags: string[], prefix = ""): Branch[] {
  const found = new Map<string, string[]>()
  for (const tag of tags) {
    const rest = tag.slice(prefix.length)
    const name = rest.includes("/") ? rest.slice(0, rest.indexOf("/") + 1) : ""
    const own = found.get(name)
    if (own) own.push(tag)
    else found.set(name, [tag])
  }
  return [...found].sort(([a], [b]) => Number(isOwn(a)) - Number(isOwn(b)) || Number(a !== "") - Number(b !== "")).map(([name, own]) => ({
    name: name || "at the top", prefix: prefix + name, tags: own, isOwn: isOwn(prefix + name),
    children: name && own.length > 8 ? treeOf(own, prefix + name).filter((one) => one.prefix !== prefix + name) : [],
  }))
}

// Which tags are shown: what is searched for, else a group, else the user's own.
export function chosenTags(tags: string[], words: string, group: string): string[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean)
  if (wanted.length) return tags.filter((tag) => wanted.every((word) => tag.toLowerCase().includes(word)))
  if (group === "*") return tags
  if (group) return tags.filter((tag) => tag.startsWith(group) || (group === "/" && !tag.includes("/")))
  const own = tags.filter((tag) => !isOwn(tag))
  return own.length ? own : tags
}
