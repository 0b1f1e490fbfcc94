/* Tells the server the reader's time zone, for the next page, puts a button beside each id that
   copies the whole of it, and renews the page for the scripts that keep it up to date. Without
   script, times are in UTC and the whole id is on hover. */
"use strict";

window.ojsPage = (() => {
    /* Put a button beside each id in this part. */
    function equip(part) {
        const words = document.querySelector("meta[name=ojs-copy]");
        if (!words || !navigator.clipboard) {
            return;
        }
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

    /* The page as it is now; null if the server cannot give it at present, and also, after the event
       `ojs-gone`, if it has another page here or none: a login page, for example. */
    async function fetchAgain() {
        const reply = await fetch(location.href, {credentials: "same-origin"});
        if (reply.redirected || (reply.status >= 400 && reply.status < 500)) {
            document.dispatchEvent(new Event("ojs-gone"));
            return null;
        }
        if (!reply.ok) {
            return null;
        }
        const page = new DOMParser().parseFromString(await reply.text(), "text/html");
        equip(page);
        return page;
    }

    /* What a node is, so that it is known again in another version of the page. A row is the object
       that it shows; what can be pressed is what it does. */
    function keyOf(node) {
        if (node.nodeType !== Node.ELEMENT_NODE) {
            return node.nodeName;
        }
        const isWhole = node.matches("tr, li, form");
        const own = isWhole && node.querySelector("input.action-select, a[href], button, summary") || node;
        const names = ["id", "name", "href", "aria-label", ...(own.matches("[type=hidden]") ? [] : ["value"])];
        const said = own.matches("details") ? own.querySelector("summary") : own.matches("button, summary") ? own : null;
        // How many there are of something does not make it another thing, but may be what a button does.
        const text = said?.matches("summary") ? said.textContent.replace(/\d+/g, "") : said?.textContent;
        return JSON.stringify([node.nodeName, own.nodeName, ...names.map(name => own.getAttribute(name)), text]);
    }

    /* The nodes in this one, by what they are; of equal ones, by their order. */
    function byKey(parent) {
        const found = new Map(), counts = new Map();
        for (const node of parent.childNodes) {
            const key = keyOf(node), count = counts.get(key) ?? 0;
            counts.set(key, count + 1);
            found.set(`${count} ${key}`, node);
        }
        return found;
    }

    /* Whether the new version of a part has what has the focus in the present one. */
    function keepsFocus(part, fresh) {
        const focused = document.activeElement;
        let node = part, other = fresh;
        while (node.contains(focused) && node !== focused) {
            const [key, child] = [...byKey(node)].find(([, each]) => each.contains(focused));
            [node, other] = [child, byKey(other).get(key)];
            if (!other) {
                return false;
            }
        }
        return true;
    }

    function merge(node, fresh) {
        if (node.isEqualNode(fresh)) {
            return;
        }
        if (node.nodeType !== Node.ELEMENT_NODE) {
            node.nodeValue = fresh.nodeValue;
            return;
        }
        for (const {name} of [...node.attributes]) {
            if (name !== "open" && !fresh.hasAttribute(name)) {
                node.removeAttribute(name);
            }
        }
        for (const {name, value} of fresh.attributes) {
            if (name !== "open" && node.getAttribute(name) !== value) {
                node.setAttribute(name, value);
            }
        }
        const known = byKey(node), wanted = byKey(fresh);
        for (const [key, child] of known) {
            if (!wanted.has(key)) {
                child.remove();
            }
        }
        let place = node.firstChild;
        for (const [key, other] of wanted) {
            const child = known.get(key);
            if (child && child === place) {
                place = place.nextSibling;
            } else {
                node.insertBefore(child ?? other, place);
            }
            if (child) {
                merge(child, other);
            }
        }
    }

    /* Make parts of this page, `[part, its new version]`, what they are in a new one. What is in both
       stays the same element: with the focus, the scroll position, and open or closed as it is. False,
       with nothing done, if the new version lacks what has the focus. */
    function renew(pairs) {
        if (!pairs.every(([part, fresh]) => keepsFocus(part, fresh))) {
            return false;
        }
        const focused = document.activeElement;
        for (const [part, fresh] of pairs) {
            merge(part, fresh);
        }
        if (focused !== document.activeElement) {
            focused.focus({preventScroll: true}); // its row has another place now
        }
        document.dispatchEvent(new Event("ojs-refreshed"));
        return true;
    }

    document.addEventListener("DOMContentLoaded", () => equip(document));
    return {fetchAgain, renew};
})();

{
    // Chosen by hand, it stays: `document.cookie = "ojs_zone=UTC; path=/"`.
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    if (zone && !/(^|; )ojs_zone=/.test(document.cookie)) {
        document.cookie = `ojs_zone=${encodeURIComponent(zone)}; path=/; SameSite=Lax`;
    }
}
