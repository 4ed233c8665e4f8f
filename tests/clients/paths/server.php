<?php
// Server of the path campaign: php -S 127.0.0.1:PORT server.php. It executes `/o/client/register` and marks the response
// with `X-Executed`. Applications read the path in one of these ways.
$target = $_SERVER['REQUEST_URI'];
$paths = [
    parse_url($target, PHP_URL_PATH),
    strtok($target, '?'),
    $_SERVER['PATH_INFO'] ?? '',
    $_SERVER['SCRIPT_NAME'],
    $_SERVER['PHP_SELF'],
];
$executed = false;
foreach ($paths as $path) {
    $executed = $executed || preg_match('#^/o/client/register$#', rawurldecode((string) $path));
}
http_response_code($executed ? 200 : 404);
if ($executed) {
    header('X-Executed: 1');
}
echo 'ok';
