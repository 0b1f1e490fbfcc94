/* Keeps the part of a page marked `data-ojs-refresh="5"` (seconds) up to date, unless the tab is
   hidden or what has the focus is gone. Without script the page reloads itself. */
(function () {
    "use strict";

    const part = document.querySelector("[data-ojs-refresh]");
    if (!part) {
        return;
    }
    const every = Number(part.dataset.ojsRefresh) * 1000;

    async function refresh() {
        if (!document.hidden) {
            try {
                const fresh = (await window.ojsPage.fetchAgain())?.getElementById(part.id);
                if (fresh) {
                    window.ojsPage.renew([[part, fresh]]);
                }
            } catch {
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
