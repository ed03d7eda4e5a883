"""The JavaScript of the page about frames, as it stands there, in a real page; only its addresses are this site's."""

import re
from typing import Any

from tests.integration.browser.site import ROOT, Site
from tests.integration.browser.test_frames import run
from tests.integration.web.browser import Tab

PAGE = (ROOT / "docs/how-to/frames.md").read_text()
(MARKUP,) = re.findall(r"```html\n(.*?)```", PAGE, re.S)
BY_ITSELF, IN_THE_FRAME = re.findall(r"```js\n(.*?)```", PAGE, re.S)
AT_HOME = (
    "console.log = (text) => heard.push(text); const frame = document.createElement('iframe'); document.body.append(frame); "
)


def here(server: Site, code: str) -> str:
    """With the addresses of this site, and modules that a script in the middle of others can load."""
    code = code.replace("https://shop.example", server.here).replace("wss://shop.example", server.here.replace("http", "ws"))
    code = code.replace("https://widgets.example/weather", "${widget}").replace("https://widgets.example", server.elsewhere)
    code = code.replace("'${widget}'", "widget").replace("8f3c", "frame-widget")
    return re.sub(r"import (\{.*?\}) from ('.*?')", r"const \1 = await import(\2)", code)


def facts(server: Site) -> dict[str, Any]:
    program = f"const base = {server.here!r}; console.log = (said) => parent.postMessage({{ said }}, '*'); "
    return {"base": server.here, "origin": server.elsewhere, "program": program + here(server, IN_THE_FRAME)}


WIDGET = "const widget = put(program, { at: origin }).src; "


async def test_the_page_joins_the_frame_to_the_server(tab: Tab, server: Site) -> None:
    markup, _, script = MARKUP.partition('<script type="module">')
    script = here(server, script.removesuffix("</script>\n"))
    show = f"document.body.insertAdjacentHTML('beforeend', {markup!r}); "
    story = WIDGET + show + "{" + script + "} await until(() => heard.length); return heard"
    assert await run(tab, story, **facts(server)) == ["rain, says the server to frame-widget"]


async def test_the_page_talks_with_the_frame_itself(tab: Tab, server: Site) -> None:
    script = here(server, BY_ITSELF) + "frame.src = widget;"
    story = WIDGET + "{" + AT_HOME + script + "} await until(() => heard.length === 2); return heard.sort()"
    assert await run(tab, story, **facts(server)) == ["The weather", "sun"]
