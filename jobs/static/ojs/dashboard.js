/* Fetches the page again every few seconds and replaces what has changed. Pauses while the page is
   hidden. Without this script, a button reloads the page. */
"use strict";

document.addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("ojs-interval");
    if (!select) {
        return; // a page of the dashboard that is not kept up to date
    }
    let timer = null;

    function replace(fresh) {
        const pairs = [...document.querySelectorAll("[data-live]")]
            .map(part => [part, fresh.querySelector(`[data-live="${part.dataset.live}"]`)])
            // What is being used stays: a chart shows there what was pointed at.
            .filter(([part, other]) => other && !part.contains(document.activeElement));
        window.ojsPage.renew(pairs);
    }

    async function look() {
        if (!document.hidden) {
            try {
                const fresh = await window.ojsPage.fetchAgain();
                if (fresh) {
                    replace(fresh);
                }
            } catch {
                // The server is away: the next look may find it.
            }
        }
        plan();
    }

    function plan() {
        clearTimeout(timer);
        const seconds = Number(select.value);
        // A hidden tab plans nothing; becoming visible does.
        if (seconds && !document.hidden) {
            timer = setTimeout(look, seconds * 1000);
        }
    }

    function address(name, value) {
        const url = new URL(location.href);
        url.searchParams.set(name, value);
        return url;
    }

    select.addEventListener("change", () => {
        history.replaceState(null, "", address("refresh", select.value));
        for (const link of document.querySelectorAll("#ojs-refresh nav a")) {
            const url = new URL(link.href);
            url.searchParams.set("refresh", select.value);
            link.href = url;
        }
        plan();
    });
    // The server said that something has changed.
    document.addEventListener("ojs-changed", () => {
        if (Number(select.value)) {
            look();
        }
    });
    document.addEventListener("visibilitychange", () => {
        if (!document.hidden && Number(select.value)) {
            look();
        }
    });
    plan();
});
