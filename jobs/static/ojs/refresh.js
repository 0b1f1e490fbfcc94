/* Keeps the part of a page marked `data-ojs-refresh="5"` (seconds) up to date, unless the tab is
   hidden or a user is typing there. Without script the page reloads itself. */
(function () {
    "use strict";

    const part = document.querySelector("[data-ojs-refresh]");
    if (!part) {
        return;
    }
    const every = Number(part.dataset.ojsRefresh) * 1000;
    const parser = new DOMParser();

    async function refresh() {
        if (!document.hidden && !part.contains(document.activeElement)) {
            try {
                const reply = await fetch(window.location.href, {credentials: "same-origin"});
                const page = parser.parseFromString(await reply.text(), "text/html");
                const fresh = page.getElementById(part.id);
                if (reply.ok && fresh) {
                    part.replaceChildren(...fresh.childNodes);
                    part.dataset.ojsRefresh = fresh.dataset.ojsRefresh;
                }
            } catch (problem) {
                /* The server is away for a moment; the next turn asks again. */
            }
        }
        if (Number(part.dataset.ojsRefresh)) {
            setTimeout(refresh, every);
        }
    }

    if (every) {
        setTimeout(refresh, every);
    }
})();
