// A view whose elements are made at once, by a function: it is made again when its data change, and keeps what the
// reader chose in it.

import { useEffect, useRef } from "preact/hooks"
import { data } from "../base/store"
import type { Page } from "../base/types"
import { made, present } from "../views/dom.js"
import { isInUse, isSame, renew } from "../views/renew.js"

type Make = (page: Page, kept: Record<string, unknown>) => Node | (Node | null | false)[] | null

export function Mounted({ make, needs, name }: { make: Make; needs: (page: Page) => unknown; name: string }) {
  const place = useRef<HTMLElement>(null)
  const state = useRef<{ needed?: unknown; lifetime?: AbortController; kept: Record<string, unknown>; waiting?: ReturnType<typeof setTimeout> }>({ kept: {} })
  const page = data.value
  useEffect(() => {
    const now = state.current
    const look = () => {
      const needed = needs(page)
      if (now.needed !== undefined && isSame(now.needed, needed)) return
      if (now.needed !== undefined && isInUse(place.current)) {
        now.waiting = setTimeout(look, 1000)
        return
      }
      const isFirst = now.needed === undefined
      now.needed = needed
      now.lifetime?.abort()
      now.lifetime = new AbortController()
      const content = present([made(now.lifetime.signal, () => make(page, now.kept))].flat())
      if (isFirst) place.current!.replaceChildren(...content)
      else renew(place.current, content)
    }
    look()
    return () => clearTimeout(now.waiting)
  }, [page])
  useEffect(() => () => state.current.lifetime?.abort(), [])
  return <section class="mounted" data-view={name} ref={place} aria-label={name} />
}
