/* The keyboard: `/` to the search box, `j` and `k` through rows, `x` ticks, `g` goes anywhere, `?`
   lists the keys. Searches are saved in this browser; the address of a list is a link to share. */
"use strict";

document.addEventListener("DOMContentLoaded", () => {
    const help = document.getElementById("ojs-help");
    const palette = document.getElementById("ojs-palette");
    if (!help || !palette) {
        return;
    }
    const PAUSE = 150; // milliseconds without a key before the server is asked
    const KEPT = "ojs-searches";
    const text = palette.querySelector("input");
    const list = palette.querySelector("ul");

    // Saved searches: [{name, url}], newest last.

    function saved() {
        try {
            const found = JSON.parse(localStorage.getItem(KEPT) ?? "[]");
            // An address of this site and no other.
            return found.filter(each => typeof each.name === "string" && /^\/(?![/\\])/.test(each.url));
        } catch {
            return [];
        }
    }

    function keep(searches) {
        localStorage.setItem(KEPT, JSON.stringify(searches));
        draw();
    }

    const changes = document.getElementById("changelist-search")?.closest("#changelist");
    const place = changes && document.createElement("p");
    if (place) {
        place.className = "ojs-saved";
        changes.before(place);
    }

    function button(words, press, label) {
        const made = document.createElement("button");
        made.type = "button";
        made.className = "ojs-link";
        made.textContent = words;
        if (label) {
            made.setAttribute("aria-label", label);
        }
        made.addEventListener("click", press);
        return made;
    }

    function draw() {
        if (!place) {
            return;
        }
        const here = location.pathname + location.search;
        const parts = [];
        for (const each of saved().filter(each => each.url.split("?")[0] === location.pathname)) {
            const link = document.createElement("a");
            link.href = each.url;
            link.textContent = each.name;
            const others = () => keep(saved().filter(other => other.url !== each.url));
            parts.push(link, button("×", others, `${palette.dataset.forget}: ${each.name}`), " ");
        }
        if (location.search && !saved().some(each => each.url === here)) {
            parts.push(button(palette.dataset.save, () => {
                const name = window.prompt(palette.dataset.name, document.getElementById("searchbar")?.value ?? "");
                if (name?.trim()) {
                    keep([...saved(), {name: name.trim(), url: here}]);
                }
            }));
        }
        place.replaceChildren(...parts);
    }

    draw();

    // The palette.

    let timer = null, asked = 0;
    let listed = null; // the text for which the list was found

    function offer(found) {
        const items = found.map((each, index) => {
            const item = document.createElement("li");
            item.id = `ojs-found-${index}`;
            item.setAttribute("role", "option");
            item.dataset.url = each.url;
            const kind = document.createElement("span");
            kind.className = "ojs-quiet";
            kind.textContent = ` ${each.kind}`;
            const name = document.createElement("bdi");
            name.textContent = each.name;
            item.append(name, kind);
            return item;
        });
        list.replaceChildren(...items);
        choose(0);
    }

    function chosen() {
        return list.querySelector("[aria-selected=true]");
    }

    function choose(index) {
        const items = [...list.children];
        const item = items[Math.min(Math.max(index, 0), items.length - 1)];
        for (const each of items) {
            each.setAttribute("aria-selected", String(each === item));
        }
        text.setAttribute("aria-activedescendant", item?.id ?? "");
        item?.scrollIntoView({block: "nearest"});
    }

    async function look() {
        const mine = ++asked, typed = text.value.trim();
        const mySearches = saved()
            .filter(each => each.name.toLowerCase().includes(typed.toLowerCase()))
            .map(each => ({...each, kind: palette.dataset.saved}));
        let found = [];
        try {
            const reply = await fetch(`${palette.dataset.url}?q=${encodeURIComponent(typed)}`, {credentials: "same-origin"});
            found = reply.ok && !reply.redirected ? (await reply.json()).found : [];
        } catch {
            // The server is away; what is saved here can be opened all the same.
        }
        if (mine === asked) {
            offer([...mySearches, ...found]);
            listed = typed;
        }
    }

    /* Go to what is chosen; who types faster than the server answers waits for the answer. */
    async function go() {
        clearTimeout(timer);
        if (listed !== text.value.trim()) {
            await look();
        }
        if (chosen()) {
            location.assign(chosen().dataset.url);
        }
    }

    text.addEventListener("input", () => {
        clearTimeout(timer);
        timer = setTimeout(look, PAUSE);
    });
    text.addEventListener("keydown", event => {
        const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
        if (step) {
            event.preventDefault();
            choose([...list.children].indexOf(chosen()) + step);
        } else if (event.key === "Enter") {
            event.preventDefault();
            go();
        }
    });
    list.addEventListener("click", event => {
        const item = event.target.closest("li");
        if (item) {
            location.assign(item.dataset.url);
        }
    });

    function open() {
        palette.showModal();
        text.select();
        look();
    }

    // Keys.

    function move(step) {
        const rows = [...document.querySelectorAll("#result_list tbody tr")];
        const now = rows.indexOf(document.activeElement?.closest?.("#result_list tbody tr"));
        const row = rows[now < 0 ? (step > 0 ? 0 : rows.length - 1) : now + step];
        const target = row?.querySelector("th a, td a") ?? row?.querySelector("input");
        target?.focus();
        row?.scrollIntoView({block: "nearest"});
    }

    document.addEventListener("keydown", event => {
        const isWriting = event.target.closest?.("input:not([type=checkbox], [type=radio], [type=submit], [type=button]), textarea, select, [contenteditable]");
        if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isWriting || document.querySelector("dialog[open]")) {
            return;
        }
        const acts = {
            "/": () => document.getElementById("searchbar")?.focus(),
            "j": () => move(1),
            "k": () => move(-1),
            "x": () => document.activeElement?.closest?.("#result_list tr")?.querySelector("input.action-select")?.click(),
            "g": open,
            "?": () => help.showModal(),
        };
        if (Object.hasOwn(acts, event.key)) {
            event.preventDefault();
            acts[event.key]();
        }
    });
});
