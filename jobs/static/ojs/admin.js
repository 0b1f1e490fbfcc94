/* Tells the server the reader's time zone, for the next page, puts a button beside each id that
   copies the whole of it, and fetches the page again for the scripts that keep it up to date. Without
   script, times are in UTC and the whole id is on hover. */
"use strict";

window.ojsPage = {
    /* The page as it is now; null if the server cannot give it at present, and also, after the event
       `ojs-gone`, if it has another page here or none: a login page, for example. */
    async fetchAgain() {
        const reply = await fetch(location.href, {credentials: "same-origin"});
        if (reply.redirected || (reply.status >= 400 && reply.status < 500)) {
            document.dispatchEvent(new Event("ojs-gone"));
            return null;
        }
        return reply.ok ? new DOMParser().parseFromString(await reply.text(), "text/html") : null;
    },
};

{
    // Chosen by hand, it stays: `document.cookie = "ojs_zone=UTC; path=/"`.
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    if (zone && !/(^|; )ojs_zone=/.test(document.cookie)) {
        document.cookie = `ojs_zone=${encodeURIComponent(zone)}; path=/; SameSite=Lax`;
    }
}

document.addEventListener("DOMContentLoaded", () => {
    const words = document.querySelector("meta[name=ojs-copy]");
    if (!words || !navigator.clipboard) {
        return;
    }

    function equip(part) {
        for (const id of part.querySelectorAll("[data-ojs-copy]")) {
            // Nothing to press inside of a link.
            const place = id.closest("a") ?? id;
            if (place.nextElementSibling?.classList.contains("ojs-copy")) {
                continue;
            }
            const button = document.createElement("button");
            button.type = "button";
            button.className = "ojs-copy";
            button.title = words.content;
            button.setAttribute("aria-label", `${words.content}: ${id.dataset.ojsCopy}`);
            button.addEventListener("click", async () => {
                await navigator.clipboard.writeText(id.dataset.ojsCopy);
                button.classList.add("ojs-copied");
                setTimeout(() => button.classList.remove("ojs-copied"), 1500);
            });
            place.after(button);
        }
    }

    equip(document);
    document.addEventListener("ojs-refreshed", () => equip(document));
    // What a page fetches anew.
    for (const part of document.querySelectorAll("[data-ojs-refresh]")) {
        new MutationObserver(() => equip(part)).observe(part, {childList: true});
    }
});
