// A region that scrolls by itself can be reached with the keyboard.
addEventListener('load', () => {
    const regions = 'article .table-wrapper, article p:has(> img), article .cell_output, article .output';
    for (const region of document.querySelectorAll(regions)) {
        if (region.scrollWidth > region.clientWidth) region.tabIndex = 0;
    }
});
