// The script of the page: searching, saving the document and, if the server allows it, sending requests.
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
  // The list is always open on a wide screen, and folded on a narrow one.
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

  // -- trying it, with polybus.js, which a live page includes above ------------------------------------------------------------

  const live = document.body.dataset.live
  const KEPT = 200
  let bus = null

  function client() {
    if (bus === null || bus.state === "closed") {
      bus = connect(new URL(live, location.href), { token: document.querySelector("#token").value })
    }
    return bus
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
      while (answer.childElementCount > KEPT) answer.firstElementChild.remove()
    }
    const took = () => `${Math.round(performance.now() - began)} ms`
    const many = (count, word) => (count === 1 ? `one ${word}` : `${count} ${word}s`)
    const refuse = ({ name, message, code, text: said = message, reason, detail }) => {
      state(`${Object.keys(Code)[code] ?? name}${code && reason ? ` (${reason})` : ""}: ${said}`, true)
      if (detail !== undefined && detail !== null) show(detail)
    }

    // Each one returns when nothing more follows.
    const styles = {
      async request(at, name, body) {
        const value = await at.request(name, body)
        state(`answered in ${took()}`)
        if (value !== null) show(value)
      },
      async notification(at, name, body) {
        await at.notify(name, body)
        state("sent")
      },
      async publication(at, name, body) {
        await at.publish(name, body)
        state("published")
      },
      async stream(at, name, body, signal) {
        let count = 0
        try {
          for await (const value of at.stream(name, body, { signal })) {
            count += 1
            show(value)
          }
        } catch (error) {
          if (!signal.aborted) throw error
        }
        state(`ended after ${many(count, "item")}, ${took()}`)
      },
      async listening(at, name, body, signal) {
        let count = 0
        const hear = (value, about) => {
          count += 1
          if (about.subject !== subject) state(about.subject)
          show(value)
        }
        await at.subscribe(subject, hear, { signal }).ready
        state("listening")
        await new Promise((resolve) => {
          signal.addEventListener("abort", resolve)
          at.addEventListener("state", (event) => event.state === "closed" && resolve(), { signal })
        })
        state(`stopped after ${many(count, "publication")}`)
      },
    }

    form.addEventListener("submit", async (event) => {
      event.preventDefault()
      answer.replaceChildren()
      let body
      try {
        body = text && text.value.trim() ? JSON.parse(text.value) : undefined
      } catch (error) {
        state(`This is not JSON: ${error.message}`, true)
        return
      }
      const name = subject.replace(/\{(\w+)\}/g, (_, parameter) => form.elements[`in-${parameter}`].value.trim())
      const controller = new AbortController()
      send.disabled = true
      const at = client()
      const { signal } = controller
      const unreached = new Promise((_, reject) => {
        const tell = ({ state, reason }) => state === "waiting" && reject(new Error(reason || "the server cannot be reached"))
        at.addEventListener("state", tell, { signal })
      })
      try {
        await Promise.race([at.ready, unreached])
        began = performance.now()
        if (stop) {
          stop.hidden = false
          stop.onclick = () => controller.abort()
        }
        await styles[style](at, name, body, signal)
      } catch (error) {
        if (began) refuse(error)
        else state(`No connection: ${error.text ?? error.message}`, true)
      }
      began = 0
      controller.abort()
      send.disabled = false
      if (stop) stop.hidden = true
    })
  }

  if (live) {
    every("form.try").forEach(attempt)
    document.querySelector("#token").addEventListener("change", () => {
      bus?.close("another token")
      bus = null
    })
  }
}
