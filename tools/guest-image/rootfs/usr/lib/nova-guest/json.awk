# Flattens a JSON document into lines "path<TAB>value". Newlines in strings become real newlines.
{ text = text $0 "\n" }

END { parse_value(""); skip(); exit text != "" }

function skip() { sub(/^[ \t\r\n]+/, "", text) }

function take(pattern,    token) {
    skip()
    if (!match(text, "^(" pattern ")")) exit 1
    token = substr(text, 1, RLENGTH)
    text = substr(text, RLENGTH + 1)
    return token
}

function next_is(character) { skip(); return substr(text, 1, 1) == character }

function take_string(    token) {
    token = take("\"([^\"\\\\]|\\\\.)*\"")
    token = substr(token, 2, length(token) - 2)
    gsub(/\\n/, "\n", token); gsub(/\\t/, " ", token); gsub(/\\r/, "", token)
    gsub(/\\"/, "\"", token); gsub(/\\\//, "/", token); gsub(/\\\\/, "\\", token)
    return token
}

function join(path, key) { return path == "" ? key : path "." key }

function parse_value(path,    key, i) {
    if (next_is("{")) {
        take("[{]")
        while (!next_is("}")) {
            key = take_string(); take(":"); parse_value(join(path, key))
            if (!next_is("}")) take(",")
        }
        take("[}]")
    } else if (next_is("[")) {
        take("\\[")
        for (i = 0; !next_is("]"); i++) {
            parse_value(join(path, i))
            if (!next_is("]")) take(",")
        }
        take("\\]")
    } else if (next_is("\"")) {
        print path "\t" take_string()
    } else {
        print path "\t" take("[-+0-9.eEa-z]+")
    }
}
