/* Keeps a list, an object's page or the dashboard up to date while it is open: the server says that
   something has changed, and the page is fetched again. It waits while something is selected or
   typed, and while the new page lacks what has the focus. Without script, or where the server cannot
   stream, the page stays as it was loaded. */
"use strict";

// Django's script knows the boxes of the rows that were loaded; here, rows come and go.
let boxes = null;
window.addEventListener("DOMContentLoaded", () => {
    const actions = window.Actions;
    window.Actions = actions && ((loaded, options) => actions(boxes = [...loaded], options));
}, {capture: true});

document.addEventListener("DOMContentLoaded", () => {
    const words = document.querySelector("meta[name=ojs-live]");
    const content = document.getElementById("content");
    if (!words || !content || !window.EventSource) {
        return;
    }
    if (document.querySelector("[data-ojs-json]")) {
        return; // a form: nothing may change while it is filled in
    }
    const PAUSE = 2000; // milliseconds between two fetches
    const PARTS_OF_LIST = [
        "#result_list tbody", "#changelist-form .actions", "#changelist .paginator",
        ".ojs-counts", ".ojs-matrix", ".ojs-whole", "#groups",
    ];
    const list = document.querySelector("#result_list tbody");
    const dashboard = document.getElementById("ojs-interval");
    const status = document.createElement("p");
    status.className = "ojs-live";
    status.hidden = true;
    content.prepend(status);

    let last = 0;
    let due = null;
    let isGone = false;

    function say(text, state) {
        status.hidden = false;
        status.dataset.state = state;
        const words_and_time = text.replace("{time}", new Date().toLocaleTimeString());
        if (status.textContent !== words_and_time) {
            status.textContent = words_and_time;
        }
    }

    /* What is shown stays as it was: the server has another page here, or none. */
    function end() {
        isGone = true;
        clearTimeout(due);
        source.close();
        say(words.dataset.gone, "lost");
    }

    /* Whether the reader is in the middle of something that a new page would undo. */
    function isBusy() {
        const selection = window.getSelection();
        if (selection && selection.type === "Range") {
            return true;
        }
        const active = document.activeElement;
        if (active && active.matches("input:not([type=checkbox]), textarea, select")) {
            return true;
        }
        for (const field of document.querySelectorAll("#content-main input, #content-main textarea, #content-main select")) {
            if (field.type === "checkbox" || field.type === "radio") {
                if (field.checked !== field.defaultChecked) {
                    return true;
                }
            } else if (field.tagName === "SELECT") {
                const chosen = [...field.options].find(option => option.defaultSelected) ?? field.options[0];
                if (chosen && !chosen.selected) {
                    return true;
                }
            } else if (field.type !== "hidden" && field.value !== field.defaultValue) {
                return true;
            }
        }
        return false;
    }

    /* The parts of this page that are kept up to date, with their new versions. Of a list that is all
       but what is searched for; null if the new one has other parts: the first row has come, or the
       last one has gone. */
    function pairs(fresh) {
        const selectors = list ? PARTS_OF_LIST : ["#content-main"];
        const found = selectors.map(each => [document.querySelector(each), fresh.querySelector(each)]);
        const isOther = Boolean(list) !== Boolean(fresh.querySelector("#result_list tbody"));
        return isOther ? null : found.filter(([part, other]) => part && other);
    }

    /* Whether a reload would undo something: what is open or closed, the focus, the scroll position. */
    function isUsed() {
        return window.scrollY > 0 || (document.activeElement ?? document.body) !== document.body
            || Boolean(document.querySelector("#content-main details[open].ojs-fold"));
    }

    async function refresh() {
        due = null;
        if (document.hidden || isGone) {
            return;
        }
        if (isBusy()) {
            say(words.dataset.paused, "paused");
            plan();
            return;
        }
        last = Date.now();
        if (dashboard) {
            document.dispatchEvent(new Event("ojs-changed"));
            say(words.dataset.following, "live");
            return;
        }
        try {
            const fresh = await window.ojsPage.fetchAgain();
            if (isGone) {
                return;
            }
            if (!fresh) {
                say(words.dataset.lost, "lost");
                return;
            }
            if (isBusy()) {
                return;
            }
            const parts = pairs(fresh);
            if (parts ? !window.ojsPage.renew(parts) : isUsed()) {
                say(words.dataset.held, "paused");
                plan();
                return;
            }
            if (!parts) {
                location.reload();
            }
            boxes?.splice(0, boxes.length, ...document.querySelectorAll("tr input.action-select"));
            say(words.dataset.following, "live");
        } catch {
            // The server is away: the next change may find it.
        }
    }

    function plan() {
        if (due === null) {
            due = setTimeout(refresh, Math.max(0, last + PAUSE - Date.now()));
        }
    }

    const source = new EventSource(words.content);
    source.addEventListener("heard", () => say(words.dataset.following, "live"));
    source.addEventListener("changed", plan);
    source.addEventListener("error", () => {
        if (source.readyState === EventSource.CLOSED && status.hidden) {
            return; // this server does not stream
        }
        say(words.dataset.lost, "lost");
    });
    document.addEventListener("ojs-gone", end);
    document.addEventListener("visibilitychange", () => {
        if (!document.hidden && !status.hidden) {
            plan();
        }
    });
});
