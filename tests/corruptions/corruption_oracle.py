"""The corruptions once more, image by image with numpy, scipy, scikit-image, OpenCV and Pillow.

These follow the steps of the original scripts. The random numbers come as arguments (`draws` in the tests makes them
the way the package does), so that random corruptions can be compared pixel by pixel, too.
"""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

cv2 = pytest.importorskip("cv2")
scipy = pytest.importorskip("scipy")
skimage = pytest.importorskip("skimage")
Image = pytest.importorskip("PIL.Image")
for part in ("scipy.ndimage", "scipy.stats", "skimage.color", "skimage.filters"):
    pytest.importorskip(part)

Array = NDArray[Any]


def blurred(image: Array, sigma: Any, **options: Any) -> Array:
    return skimage.filters.gaussian(image, sigma=sigma, channel_axis=-1 if image.ndim == 3 else None, **options)


def zoomed(image: Array, factor: float) -> Array:
    """Crop the middle, zoom it linearly, crop the middle of that."""
    parts = []
    for side in image.shape[:2]:
        crop = math.ceil(side / factor)
        parts.append(slice((side - crop) // 2, (side - crop) // 2 + crop))
    large = scipy.ndimage.zoom(image[tuple(parts)], (factor, factor) + (1,) * (image.ndim - 2), order=1)
    top, left = ((big - small) // 2 for big, small in zip(large.shape[:2], image.shape[:2], strict=True))
    return large[top : top + image.shape[0], left : left + image.shape[1]]


def moved(image: Array, length: int, sigma: float, degrees: float) -> Array:
    """ImageMagick's motion blur, from its documented kernel."""
    taps = np.arange(2 * length + 1)
    weights = scipy.stats.norm.pdf(taps, scale=sigma)
    weights /= weights.sum()
    total = np.zeros(image.shape)
    rows, columns = np.arange(image.shape[0]), np.arange(image.shape[1])
    for tap, weight in zip(taps, weights, strict=True):
        down = math.ceil(tap * math.sin(math.radians(degrees)) - 0.5)
        right = math.ceil(tap * math.cos(math.radians(degrees)) - 0.5)
        y, x = np.clip(rows + down, 0, len(rows) - 1), np.clip(columns + right, 0, len(columns) - 1)
        total += weight * image[y][:, x]
    return np.rint(total)


def warped(image: Array, inverse: Array) -> Array:
    """`cv2.warpAffine` as it was up to version 4: it rounds the positions to 1/32 of a pixel, and `remap` takes those."""
    places = []
    for along_x, along_y, start in inverse:
        across = np.rint(along_x * np.arange(image.shape[1]) * 1024).astype(int)
        rest = np.rint((along_y * np.arange(image.shape[0]) + start) * 1024).astype(int)
        places.append((((across + rest[:, None] + 16) >> 5) / 32).astype(np.float32))
    return cv2.remap(image, *places, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)


def gaussian_noise(image: Array, c: float, draw: Any) -> Array:
    return (image / 255 + c * draw["normal"]) * 255


def speckle_noise(image: Array, c: float, draw: Any) -> Array:
    return (image / 255 + image / 255 * c * draw["normal"]) * 255


def impulse_noise(image: Array, c: float, draw: Any) -> Array:
    result, number = image.astype(float), draw["uniform"]
    result[number < c] = 0
    result[number < c / 2] = 255
    return result


def gaussian_blur(image: Array, c: float, draw: Any) -> Array:
    return blurred(image / 255, c) * 255


def defocus_blur(image: Array, c: Any, draw: Any) -> Array:
    radius, sigma = c
    reach, size = (8, 3) if radius <= 8 else (radius, 5)
    axis = np.arange(-reach, reach + 1)
    disk = (axis[:, None] ** 2 + axis**2 <= radius**2).astype(np.float32)
    kernel = cv2.GaussianBlur(disk / disk.sum(), (size, size), sigmaX=sigma)
    return np.stack([cv2.filter2D(image[..., channel] / 255, -1, kernel) for channel in range(3)], -1) * 255


def glass_blur(image: Array, c: Any, draw: Any) -> Array:
    """The walk as the original does it: the values of a numpy view are copied, not swapped."""
    sigma, reach, rounds = c
    height, width = image.shape[:2]
    values = np.uint8(np.clip(blurred(image / 255, sigma) * 255 + 1e-9, 0, 255)).reshape(-1, 3).tolist()
    for turn in range(rounds):
        down, right = (part.tolist() for part in draw["steps"][turn])
        for y in range(height - reach, reach, -1):
            for x in range(width - reach, reach, -1):
                here = y * width + x
                values[here] = values[here + down[here] * width + right[here]]
    return blurred(np.array(values).reshape(image.shape) / 255, sigma) * 255


def motion_blur(image: Array, c: Any, draw: Any) -> Array:
    return moved(image, *c, draw["degrees"])


def zoom_blur(image: Array, c: Any, draw: Any) -> Array:
    start = (image / 255).astype(np.float32)
    return (start + sum(zoomed(start, factor) for factor in c)) / (len(c) + 1) * 255


def snow(image: Array, c: Any, draw: Any) -> Array:
    mean, deviation, zoom, threshold, length, sigma, kept = c
    layer = zoomed(mean + deviation * draw["normal"], zoom)
    layer[layer < threshold] = 0
    layer = moved(np.uint8(np.clip(layer, 0, 1) * 255), length, sigma, draw["degrees"])[..., None] / 255
    start = image.astype(np.float32) / 255
    grey = cv2.cvtColor(start, cv2.COLOR_RGB2GRAY)[..., None]
    start = kept * start + (1 - kept) * np.maximum(start, 1.5 * grey + 0.5)
    return (start + layer + np.rot90(layer, 2)) * 255


def frost(image: Array, c: Any, draw: Any) -> Array:
    kept, strength, scale = c
    photograph = cv2.imread(str(draw["file"]))[..., ::-1]
    if scale != 1:
        photograph = cv2.resize(photograph, (0, 0), fx=scale, fy=scale)
    height, width = image.shape[:2]
    top = int(draw["place"][0] * (photograph.shape[0] - height))
    left = int(draw["place"][1] * (photograph.shape[1] - width))
    return kept * image + strength * photograph[top : top + height, left : left + width]


def fog(image: Array, c: Any, draw: Any) -> Array:
    """Diamond-square by hand, point by point as the textbook has it."""
    strength, decay = c
    size = draw["size"]
    grid, step, swing = np.zeros((size, size)), size, 1.0
    while step >= 2:
        half = step // 2
        squares, tops, lefts = draw["levels"][step]
        for i in range(size // step):
            for j in range(size // step):
                y, x = i * step, j * step
                far_y, far_x = (y + step) % size, (x + step) % size
                corners = grid[y, x] + grid[far_y, x] + grid[y, far_x] + grid[far_y, far_x]
                grid[y + half, x + half] = corners / 4 + swing * squares[i, j]
        for i in range(size // step):
            for j in range(size // step):
                y, x = i * step, j * step
                middle, above, left = grid[y + half, x + half], grid[y - half, x + half], grid[y + half, x - half]
                right, below = grid[y, (x + step) % size], grid[(y + step) % size, x]
                grid[y, x + half] = (middle + above + grid[y, x] + right) / 4 + swing * tops[i, j]
                grid[y + half, x] = (middle + left + grid[y, x] + below) / 4 + swing * lefts[i, j]
        step, swing = half, swing / decay**2
    cloud = (grid - grid.min()) / (grid.max() - grid.min())
    most = image.max() / 255
    return (image / 255 + strength * cloud[: image.shape[0], : image.shape[1], None]) * most / (most + strength) * 255


def brightness(image: Array, c: float, draw: Any) -> Array:
    hsv = skimage.color.rgb2hsv(image / 255)
    hsv[..., 2] = np.clip(hsv[..., 2] + c, 0, 1)
    return skimage.color.hsv2rgb(hsv) * 255


def saturate(image: Array, c: Any, draw: Any) -> Array:
    hsv = skimage.color.rgb2hsv(image / 255)
    hsv[..., 1] = np.clip(hsv[..., 1] * c[0] + c[1], 0, 1)
    return skimage.color.hsv2rgb(hsv) * 255


def contrast(image: Array, c: float, draw: Any) -> Array:
    start = image / 255
    mean = start.mean((0, 1), keepdims=True)
    return ((start - mean) * c + mean) * 255


def elastic_transform(image: Array, c: Any, draw: Any) -> Array:
    strength, sigma, _ = c
    height, width = image.shape[:2]
    start = image.astype(np.float32) / 255
    middle, reach = np.array([width // 2, height // 2]), min(height, width) // 3
    before = np.float32(middle + reach * np.array([[1, 1], [1, -1], [-1, -1]]))
    matrix = cv2.getAffineTransform(before, before + draw["jitter"].astype(np.float32))
    start = warped(start, cv2.invertAffineTransform(matrix))
    options = {"mode": "reflect", "truncate": 3}
    dx, dy = (blurred(part, sigma, **options) * strength for part in draw["noise"])
    y, x = np.mgrid[:height, :width]
    channels = [
        scipy.ndimage.map_coordinates(start[..., channel], [y + dy, x + dx], order=1, mode="reflect")
        for channel in range(3)
    ]
    return np.stack(channels, -1) * 255


def pixelate(image: Array, c: float, draw: Any) -> Array:
    height, width = image.shape[:2]
    small = Image.fromarray(image).resize((int(width * c), int(height * c)), Image.Resampling.BOX)
    return np.array(small.resize((width, height), Image.Resampling.BOX))


def jpeg_compression(image: Array, c: int, draw: Any) -> Array:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=c)
    return np.array(Image.open(stream))


def spatter(image: Array, c: Any, draw: Any) -> Array:
    mean, deviation, sigma, threshold, strength, muddy = c
    start = image.astype(np.float32) / 255
    liquid = blurred(mean + deviation * draw["normal"], sigma)
    if muddy:
        cover = blurred((liquid > threshold).astype(np.float32), strength)[..., None]
        cover[cover < 0.8] = 0
        return (start * (1 - cover) + np.array([63, 42, 20]) / 255 * cover) * 255
    liquid[liquid < threshold] = 0
    liquid = (liquid * 255).astype(np.uint8)
    relief = cv2.distanceTransform(255 - cv2.Canny(liquid, 50, 150), cv2.DIST_L2, 5)
    relief = cv2.blur(np.minimum(relief, 20), (3, 3)).astype(np.uint8)
    relief = cv2.equalizeHist(relief)
    relief = cv2.filter2D(relief, cv2.CV_8U, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]))
    glint = liquid * cv2.blur(relief, (3, 3)).astype(np.float32)
    glint *= strength / max(glint.max(), 1)
    return (start + glint[..., None] * np.array([175, 238, 238]) / 255) * 255


def corrupt(name: str, image: Array, parameters: Any, draw: Any) -> Array:
    return np.uint8(np.clip(globals()[name](image, parameters, draw), 0, 255))
