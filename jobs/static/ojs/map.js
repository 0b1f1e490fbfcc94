/* On the fleet map: how many workers are selected, all of a group at a click on its name, and a
   worker's page at a double click. Without script, cells are selected one by one. */
"use strict";

document.addEventListener("DOMContentLoaded", () => {
    const boxes = part => [...part.querySelectorAll("input[name=_selected_action]")];

    function count() {
        const said = document.querySelector("[data-ojs-chosen]");
        if (said) {
            const chosen = boxes(document).filter(box => box.checked).length;
            said.textContent = said.dataset.ojsChosen.replace("{count}", chosen);
        }
    }

    // The page is fetched anew while one looks: so nothing is bound to a single cell.
    document.addEventListener("change", count);
    document.addEventListener("click", event => {
        const group = event.target.closest?.(".ojs-group legend")?.parentElement;
        if (group) {
            const all = boxes(group), some = all.some(box => !box.checked);
            for (const box of all) {
                box.checked = some;
            }
            count();
        }
    });
    document.addEventListener("dblclick", event => {
        const url = event.target.closest?.(".ojs-cells label")?.querySelector("input").dataset.url;
        if (url) {
            location.assign(url);
        }
    });
    // One field for all: Django refuses forms with more than a thousand.
    document.addEventListener("formdata", event => {
        if (!event.target.closest(".ojs-map")) {
            return;
        }
        const chosen = event.formData.getAll("_selected_action");
        event.formData.delete("_selected_action");
        event.formData.set("chosen", JSON.stringify(chosen));
    });
    document.addEventListener("ojs-refreshed", count);
    count();
});
