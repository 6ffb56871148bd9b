# Runs the snippets of query mode in one R. Descriptor 62 brings requests, 63 takes reports, framed as in framing.py:
# kind (1 byte), length (4 bytes, big endian), fields of a length and bytes each.
local({
  requests <- file("/proc/self/fd/62", "rb", raw = TRUE)
  reports <- file("/proc/self/fd/63", "wb", raw = TRUE)

  sized <- function(bytes) c(writeBin(length(bytes), raw(), size = 4L, endian = "big"), bytes)

  report <- function(kind, ...) {
    fields <- lapply(list(...), function(text) sized(charToRaw(enc2utf8(text))))
    writeBin(c(charToRaw(kind), sized(as.raw(unlist(fields)))), reports)
    flush(reports)
  }

  read_bytes <- function(count) {
    bytes <- raw()
    while (length(bytes) < count) {
      part <- readBin(requests, "raw", count - length(bytes))
      if (length(part) == 0L) quit(save = "no")
      bytes <- c(bytes, part)
    }
    bytes
  }

  read_number <- function() readBin(read_bytes(4L), "integer", size = 4L, endian = "big")

  read_field <- function() {
    text <- rawToChar(read_bytes(read_number()))
    Encoding(text) <- "UTF-8"
    text
  }

  fail <- function(name, message, text) {
    cat(text, "\n", sep = "", file = stderr())
    report("X", text, name, message)
  }

  run <- function(code) {
    tryCatch(
      for (expression in parse(text = code, keep.source = FALSE, encoding = "UTF-8")) {
        result <- withVisible(eval(expression, globalenv()))
        if (result$visible) print(result$value)
      },
      error = function(error) {
        call <- conditionCall(error)
        place <- if (is.null(call)) "" else paste0(" in ", deparse(call)[1L])
        message <- conditionMessage(error)
        fail(class(error)[1L], message, paste0("Error", place, ": ", message))
      },
      interrupt = function(interrupt) fail("interrupt", "", "interrupted")
    )
  }

  options(warn = 1)
  report("H", paste(R.version$major, R.version$minor, sep = "."))
  report("S")
  repeat {
    read_bytes(1L)
    read_number()
    number <- read_field()
    code <- read_field()
    run(code)
    flush(stdout())
    report("D", number)
  }
})
