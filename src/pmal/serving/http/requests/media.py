"""The types of bodies that are taken."""

RAW_TYPES = (
    "application/octet-stream",
    "image/bmp",
    "image/gif",
    "image/jpeg",
    "image/png",
    "image/tiff",
    "image/webp",
    "image/x-ms-bmp",
    "image/x-portable-anymap",
    "image/x-portable-bitmap",
    "image/x-portable-graymap",
    "image/x-portable-pixmap",
)
FORM = "multipart/form-data"
JSON = "application/json"
