#include "page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chart.h"
#include "style.h"
#include "view.h"
#include "../common/draw.h"
#include "../common/say.h"
#include "cairn/version.h"
#include "core/status.h"

enum { MOST_ROWS = 1000 }; /* rows of a table that the page shows; the table's file has all */

static void put(FILE *out, const char *text) {
    char *clean = clean_text(text);
    draw_escaped(out, clean);
    free(clean);
}

/* ---- tables ---- */

static void put_heading(FILE *out, const struct lab_table *t, size_t column) {
    char label[160];
    column_label(t, column, label);
    fputs(t->columns[column].unit ? "<th>" : "<th class=\"t\">", out);
    put(out, label);
    fputs("</th>", out);
}

static void put_row(FILE *out, const struct lab_table *t, size_t row) {
    fputs("<tr>", out);
    for (size_t c = 0; c < t->num_columns; c++) {
        char number[32];
        const struct lab_cell *cell = table_cell(t, row, c);
        fputs(cell->text ? "<td class=\"t\">" : "<td>", out);
        put(out, cell->text ? cell->text : number_text(cell->number, number));
        fputs("</td>", out);
    }
    fputs("</tr>\n", out);
}

static void put_table(FILE *out, const struct lab_table *t) {
    const size_t rows = table_rows(t), shown = rows < MOST_ROWS ? rows : MOST_ROWS;
    fputs("<details><summary>", out);
    put(out, t->title);
    fprintf(out, ": %zu %s, %s.csv</summary>\n", rows, rows == 1 ? "row" : "rows", t->name);
    if (shown < rows) fprintf(out, "<p class=\"soft\">The first %zu rows; %s.csv has all.</p>\n", shown, t->name);
    fputs("<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>", out);
    for (size_t c = 0; c < t->num_columns; c++) put_heading(out, t, c);
    fputs("</tr></thead><tbody>\n", out);
    for (size_t row = 0; row < shown; row++) put_row(out, t, row);
    fputs("</tbody></table></div></details>\n", out);
}

/* ---- pictures ---- */

/* Writes a name that lines may break after its dots. */
static void put_name(FILE *out, const char *name) {
    char *clean = clean_text(name);
    for (char *part = clean, *end; *part; part = end) {
        end = part + strcspn(part, ".");
        end += *end == '.';
        const char behind = *end;
        *end = '\0';
        draw_escaped(out, part);
        *end = behind;
        if (behind) fputs("<wbr/>", out);
    }
    free(clean);
}

static void put_panels(FILE *out, const struct view *v) {
    fprintf(out, "<div class=\"panels%s\">\n", v->panels.count <= 4 ? " few" : "");
    for (size_t p = 0; p < v->panels.count; p++) {
        char label[160];
        fputs("<div><h4>", out);
        put_name(out, key_label(v, &v->panels, p, v->picture->panel, label));
        fputs("</h4>\n", out);
        chart_write(out, v, p, CHART_NARROW, "panel");
        fputs("</div>\n", out);
    }
    fputs("</div>\n", out);
}

static cairn_status put_picture(FILE *out, const struct lab_result *r, const struct lab_picture *p) {
    struct view v;
    cairn_status st = CAIRN_OK;
    TRY(view_init(&v, r, p));
    fprintf(out, "<figure%s><h3>", p->panel ? " class=\"whole\"" : "");
    put(out, p->title);
    fputs("</h3>\n", out);
    chart_write_legend(out, &v);
    if (table_rows(v.table) == 0) {
        fputs("<p class=\"soft\">There are no numbers to draw.</p>\n", out);
    } else if (p->panel) {
        put_panels(out, &v);
    } else {
        chart_write(out, &v, 0, CHART_WIDE, "wide");
        chart_write(out, &v, 0, CHART_NARROW, "narrow");
    }
    put_table(out, v.table);
    fputs("</figure>\n", out);
out:
    view_free(&v);
    return st;
}

/* ---- results ---- */

static void put_findings(FILE *out, const struct lab_result *r) {
    static const char *const words[] = {[LAB_SAYS] = "",
                                        [LAB_HOLDS] = "<span class=\"good\">As expected:</span> ",
                                        [LAB_FAILS] = "<span class=\"bad\">Not as expected:</span> "};
    if (r->num_findings == 0) return;
    fputs("<div class=\"findings\"><h3>Findings</h3>\n<ul>\n", out);
    for (size_t i = 0; i < r->num_findings; i++) {
        fprintf(out, "<li>%s", words[r->findings[i].verdict]);
        put(out, r->findings[i].text);
        fputs("</li>\n", out);
    }
    fputs("</ul></div>\n", out);
}

static void put_fact(FILE *out, const char *name, const char *text) {
    if (text[0] == '\0') return;
    fprintf(out, "<dt>%s</dt><dd>", name);
    put(out, text);
    fputs("</dd>\n", out);
}

/* Quotes a text so that a shell reads it as one word. */
static void put_word(FILE *out, const char *text) {
    char letter[2] = "";
    if (*text && !text[strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/+-=,:@%")]) {
        put(out, text);
        return;
    }
    fputs("'", out);
    for (; *text; text++) {
        *letter = *text;
        put(out, *text == '\'' ? "'\\''" : letter);
    }
    fputs("'", out);
}

/* Writes the command that reproduces this result; a recorded training has none. */
static void put_command(FILE *out, const char *folder, const struct lab_result *r) {
    if (!result_setting(r, "seed")) return;
    fprintf(out, "<dt>command</dt><dd><code>cairn-lab run %s", r->name);
    for (size_t i = 0; i < r->num_settings; i++) {
        fputs(" --", out);
        put(out, r->settings[i].name);
        fputs(" ", out);
        put_word(out, r->settings[i].value);
    }
    fputs(" --out ", out);
    put_word(out, folder);
    fputs("</code></dd>\n", out);
}

/* Writes the facts of a recorded training. */
static void put_settings(FILE *out, const struct lab_result *r) {
    if (r->num_settings == 0 || result_setting(r, "seed")) return;
    fputs("<dt>facts</dt><dd>", out);
    for (size_t i = 0; i < r->num_settings; i++) {
        if (i > 0) fputs(", ", out);
        put(out, r->settings[i].name);
        fputs(" ", out);
        put(out, r->settings[i].value);
    }
    fputs("</dd>\n", out);
}

static bool is_drawn(const struct lab_result *r, const struct lab_table *t) {
    for (size_t p = 0; p < r->num_pictures; p++) {
        if (strcmp(r->pictures[p].table, t->name) == 0) return true;
    }
    return false;
}

static cairn_status put_result(FILE *out, const char *folder, const struct lab_result *r) {
    cairn_status st = CAIRN_OK;
    fprintf(out, "<section id=\"%s\">\n<h2>", r->name);
    put(out, r->question);
    fputs("</h2>\n", out);
    put_findings(out, r);
    fputs("<div class=\"pictures\">\n", out);
    for (size_t p = 0; p < r->num_pictures; p++) TRY(put_picture(out, r, &r->pictures[p]));
    fputs("</div>\n", out);
    for (size_t t = 0; t < r->num_tables; t++) {
        if (!is_drawn(r, r->tables[t])) put_table(out, r->tables[t]);
    }
    fputs("<dl>\n", out);
    put_fact(out, "method", r->method);
    put_fact(out, "expected", r->expected);
    put_fact(out, "source", r->source);
    put_fact(out, "Cairn", r->cairn);
    put_settings(out, r);
    put_command(out, folder, r);
    fputs("</dl>\n</section>\n", out);
out:
    return st;
}

static void put_list(FILE *out, const struct lab_result *results, size_t count) {
    fputs("<nav><ul>\n", out);
    for (size_t i = 0; i < count; i++) {
        fprintf(out, "<li><a href=\"#%s\">", results[i].name);
        put(out, results[i].question);
        fprintf(out, "</a>%s</li>\n", result_holds(&results[i]) ? "" : " <span class=\"bad\">not as expected</span>");
    }
    fputs("</ul></nav>\n", out);
}

cairn_status page_make(const char *folder, const struct lab_result *results, size_t count, char **page,
                       size_t *nbytes) {
    cairn_status st = CAIRN_OK;
    FILE *out = open_memstream(page, nbytes);
    REQUIRE(out, CAIRN_ENOMEM, "out of memory");
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
          "<link rel=\"icon\" href=\"data:,\"/>\n<title>cairn-lab: ",
          out);
    put(out, folder);
    fprintf(out, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<header><h1>cairn-lab: ", style_sheet);
    put(out, folder);
    fprintf(out, "</h1>\n<p class=\"soft\">Cairn %d.%d.%d. Every picture is drawn from the table below it.</p>\n",
            CAIRN_VERSION_MAJOR, CAIRN_VERSION_MINOR, CAIRN_VERSION_PATCH);
    if (count > 1) put_list(out, results, count);
    fputs("</header>\n<main>\n", out);
    for (size_t i = 0; i < count; i++) TRY(put_result(out, folder, &results[i]));
    fputs("</main>\n</body>\n</html>\n", out);
out:
    if (fclose(out) != 0 && st == CAIRN_OK) st = cairn__fail(CAIRN_ENOMEM, "out of memory");
    return st;
}
