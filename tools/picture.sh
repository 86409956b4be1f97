#!/usr/bin/env bash
# Draws what the demo printed as a terminal, as SVG on standard output. Its input is the log of a real `make demo`
# (`make bare` keeps one). What stands before the demo's own lines, the installation and the build, is left out.
set -euo pipefail

log=${1:?usage: tools/picture.sh LOG}

{
    echo '# make demo'
    # make echoes the demo's command before it runs it.
    sed '1,/^target\/release\/diskcast-demo$/d' "$log" | fold --spaces --width=110
} | awk '
    BEGIN { em = 14; char = 8.4; row = 19; pad = 18 }
    { gsub(/&/, "\\&amp;"); gsub(/</, "\\&lt;"); gsub(/>/, "\\&gt;"); sub(/ +$/, ""); lines[NR] = $0 }
    function columns(text) { gsub(/&[a-z]+;/, "x", text); return length(text) }
    function style(text) {
        if (text ~ /^#/) return "fill=\"#ffffff\" font-weight=\"bold\""
        if (text ~ /^==/) return "fill=\"#7cc4ff\""
        if (text ~ /^host /) return "fill=\"#ffffff\""
        return "fill=\"#d8dee9\""
    }
    END {
        rows = NR; while (lines[rows] == "") rows--
        for (i = 1; i <= rows; i++) if (columns(lines[i]) > widest) widest = columns(lines[i])
        width = int(widest * char + 2 * pad + 1); height = rows * row + 2 * pad
        printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\"\n", \
            width, height, width, height
        printf "  font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"%d\">\n", em
        print "<title>What make demo printed</title>"
        print "<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1b2230\"/>"
        # textLength keeps the columns whichever font is there.
        for (i = 1; i <= rows; i++) if (lines[i] != "")
            printf "<text x=\"%d\" y=\"%d\" textLength=\"%.1f\" %s %s>%s</text>\n", pad, pad + i * row - 5, \
                columns(lines[i]) * char, "lengthAdjust=\"spacingAndGlyphs\" xml:space=\"preserve\"", \
                style(lines[i]), lines[i]
        print "</svg>"
    }'
