"use strict"
// The page of an AsyncAPI document: it is searched, the document is saved, and requests are sent where the server allows it.
{
  const every = (selector, within = document) => [...within.querySelectorAll(selector)]
  document.documentElement.classList.add("js")

  // -- searching ------------------------------------------------------------------------------------------------------------

  const field = document.querySelector(".search input")
  const found = document.querySelector(".search output")
  const articles = every("article")
  const links = new Map(every("nav li a").map((link) => [link.hash.slice(1), link.parentElement]))

  function search() {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean)
    let shown = 0
    for (const article of articles) {
      const fits = words.every((word) => article.dataset.search.includes(word))
      article.hidden = !fits
      links.get(article.id)?.toggleAttribute("hidden", !fits)
      shown += fits
    }
    for (const group of every("[data-group]")) group.hidden = !every("li:not([hidden]), article:not([hidden])", group).length
    found.textContent = words.length ? (shown ? `${shown} of ${articles.length}` : "nothing found") : ""
  }

  field.addEventListener("input", search)
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "")
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault()
      field.focus()
    } else if (event.key === "Escape" && document.activeElement === field) {
      field.value = ""
      search()
    }
  })
  // On a wide screen the list is always there; on a narrow one it is opened.
  const list = document.querySelector("nav details")
  const wide = matchMedia("(min-width: 60rem)")
  const unfold = () => {
    list.open = wide.matches
    field.placeholder = wide.matches ? "Search  ( / )" : "Search"
  }
  wide.addEventListener("change", unfold)
  unfold()
  list.addEventListener("click", (event) => {
    if (!wide.matches && event.target.closest("a")) list.open = false
  })

  // -- the document as a file -----------------------------------------------------------------------------------------------

  document.querySelector("#save").addEventListener("click", (event) => {
    const text = document.querySelector("#document").textContent
    event.target.href = URL.createObjectURL(new Blob([text], { type: "application/json" }))
  })

  // -- trying it: a client of UBRE in JSON, as any other ------------------------------------------------------------------------

  const live = document.body.dataset.live
  const CREDIT = 32
  const KEPT = 200
  let connecting = null
  const calls = new Map()
  const listeners = new Map()
  let last = 0

  function connect() {
    if (connecting) return connecting
    const url = new URL(live, location.href)
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:"
    url.hash = ""
    const token = document.querySelector("#token").value
    connecting = new Promise((resolve, reject) => {
      const socket = new WebSocket(url, token ? [`polybus.token.${token}`] : [])
      socket.onopen = () => resolve(socket)
      socket.onmessage = (event) => receive(socket, JSON.parse(event.data))
      socket.onclose = (event) => {
        const why = event.reason || (event.code === 1006 ? "not let in, or the server has gone; perhaps you have to sign in" : `closed, ${event.code}`)
        connecting = null
        reject(new Error(why))
        for (const waiting of [calls, listeners]) {
          for (const one of waiting.values()) one.refuse("Disconnected", why)
          waiting.clear()
        }
      }
    })
    return connecting
  }

  function fits(pattern, subject) {
    const mark = pattern.includes("/") ? "/" : "."
    const wanted = pattern.split(mark)
    const tokens = subject.split(mark)
    const open = wanted.at(-1) === ">"
    if (open ? tokens.length < wanted.length : tokens.length !== wanted.length) return false
    return wanted.every((token, place) => token === "*" || (open && place === wanted.length - 1) || token === tokens[place])
  }

  function receive(socket, frame) {
    if ("publish" in frame) {
      for (const [pattern, listener] of listeners) if (fits(pattern, String(frame.publish))) listener.hear(frame)
      return
    }
    const id = frame.success ?? frame.fail ?? frame.item ?? frame.end
    const call = calls.get(id)
    if (call) {
      if ("item" in frame) {
        call.item(frame.body ?? null)
        socket.send(JSON.stringify({ credit: id, n: 1 }))
        return
      }
      calls.delete(id)
      if ("success" in frame) call.answer(frame.body ?? null)
      else if ("fail" in frame || frame.code) call.refuse(frame.code, frame.text ?? frame.body, frame.reason, frame.detail)
      else call.end()
    } else if ("request" in frame) {
      // The server asks, whether this is a polybus, for example: it is none.
      socket.send(JSON.stringify({ fail: frame.id ?? frame.request, body: "NotFound", code: 12 }))
    }
  }

  function attempt(form) {
    const { style, subject } = form.dataset
    const text = form.querySelector("textarea")
    const send = form.querySelector("button[type=submit]")
    const stop = form.querySelector("button.stop")
    const answer = form.querySelector(".answer")
    let began = 0

    const state = (words, refused = false) => {
      const line = document.createElement("p")
      line.className = refused ? "state refused" : "state"
      line.textContent = words
      answer.append(line)
    }
    const show = (value) => {
      const block = document.createElement("pre")
      block.textContent = typeof value === "string" ? value : JSON.stringify(value, null, 2)
      answer.append(block)
    }
    const took = () => `${Math.round(performance.now() - began)} ms`
    const done = () => {
      send.disabled = false
      if (stop) stop.hidden = true
    }

    const refuse = (code, said, reason, detail) => {
      const known = JSON.parse(document.body.dataset.codes)
      state(`${known[code] ?? code}${reason ? ` (${reason})` : ""}: ${said ?? ""}`, true)
      if (detail !== undefined && detail !== null) show(detail)
      done()
    }
    const many = (count, word) => (count === 1 ? `one ${word}` : `${count} ${word}s`)
    const forget = () => {
      while (answer.childElementCount > KEPT) answer.firstElementChild.remove()
    }

    const listen = (socket) => {
      let count = 0
      const hear = ({ publish, body }) => {
        count += 1
        if (publish !== subject) state(publish)
        show(body ?? null)
        forget()
      }
      listeners.set(subject, { hear, refuse })
      stop.hidden = false
      stop.onclick = () => {
        listeners.delete(subject)
        if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ unsubscribe: subject }))
        state(`stopped after ${many(count, "publication")}`)
        done()
      }
      socket.send(JSON.stringify({ subscribe: subject }))
      state("listening")
    }

    form.addEventListener("submit", async (event) => {
      event.preventDefault()
      answer.replaceChildren()
      let body
      try {
        body = text && text.value.trim() ? JSON.parse(text.value) : undefined
      } catch (error) {
        state(`This is no JSON: ${error.message}`, true)
        return
      }
      const name = subject.replace(/\{(\w+)\}/g, (_, parameter) => form.elements[`in-${parameter}`].value.trim())
      send.disabled = true
      began = performance.now()
      let socket
      try {
        socket = await connect()
      } catch (error) {
        state(`No connection: ${error.message}`, true)
        done()
        return
      }
      began = performance.now()
      if (style === "listening") {
        listen(socket)
        return
      }
      const id = `page-${(last += 1)}`
      if (style === "publication") {
        socket.send(JSON.stringify({ publish: name, body }))
        state("published")
        done()
        return
      }
      let count = 0
      calls.set(id, {
        answer: (value) => {
          state(`answered in ${took()}`)
          if (value !== null) show(value)
          done()
        },
        item: (value) => {
          count += 1
          show(value)
          forget()
        },
        end: () => {
          state(`ended after ${many(count, "item")}, ${took()}`)
          done()
        },
        refuse,
      })
      if (style === "stream") {
        stop.hidden = false
        stop.onclick = () => {
          calls.get(id)?.end()
          calls.delete(id)
          if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ end: id, code: 1 }))
        }
        socket.send(JSON.stringify({ open: id, subject: name, mode: "stream", n: CREDIT, body }))
      } else {
        socket.send(JSON.stringify({ request: name, id, body }))
        if (style === "notification") {
          calls.delete(id)
          state("sent")
          done()
        }
      }
    })
  }

  if (live) {
    every("form.try").forEach(attempt)
    document.querySelector("#token").addEventListener("change", () => {
      connecting?.then((socket) => socket.close())
      connecting = null
    })
  }
}
